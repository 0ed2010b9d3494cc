// ModelFiles: configs, stop tokens and templates from all the places that may carry them.
#include "checkpoint/model_files.h"

#include "checkpoint/config_keys.h"
#include "checkpoint/gguf_builder.h"
#include "checkpoint/rope_config.h"
#include "checkpoint/test_folder.h"

namespace atom {
namespace {

using namespace testing;

TEST(ModelFiles, CollectsStopTokensFromEveryFile) {
  const TestFolder folder;
  folder.write("config.json", R"({"eos_token_id": [1, 2], "text_config": {"eos_token_id": 7}})");
  folder.write("generation_config.json", R"({"eos_token_id": 3})");
  folder.write("tokenizer_config.json", R"({"eos_token": "<eos>", "bos_token": null})");
  folder.write(
      "special_tokens_map.json",
      R"({"eos_token": {"content": "<end>"}, "bos_token": {"content": "<bos>"}, "pad_token": "<pad>"})");
  const ModelFiles files = open_model_files(folder.path());
  EXPECT_EQ(files.eos_token_ids, (std::vector<int64_t>{1, 2, 7, 3}));
  EXPECT_EQ(files.eos_texts, (std::vector<std::string>{"<eos>", "<end>"}));
  EXPECT_EQ(files.bos_text, "<bos>");
  EXPECT_EQ(files.pad_text, "<pad>");
  EXPECT_FALSE(files.tokenizer_json);
  EXPECT_FALSE(files.chat_template);
}

TEST(ModelFiles, NullEmptyAndRepeatedStopTokensAreFine) {
  const TestFolder folder;
  folder.write("config.json", R"({"eos_token_id": null})");
  folder.write("generation_config.json", R"({"eos_token_id": []})");
  EXPECT_TRUE(open_model_files(folder.path()).eos_token_ids.empty());
  folder.write("config.json", R"({"eos_token_id": [5, 5, -1]})");
  folder.write("generation_config.json", R"({"eos_token_id": 5})");
  EXPECT_EQ(open_model_files(folder.path()).eos_token_ids, std::vector<int64_t>{5});
  folder.write("config.json", R"({"eos_token_id": "5"})");
  EXPECT_ERROR(open_model_files(folder.path()), "config.json: eos_token_id: not a token id");
}

TEST(ModelFiles, TemplatesComeFromTheFirstSourceThatHasThem) {
  const TestFolder folder;
  folder.write("config.json", "{}");
  folder.write("chat_template.json", R"({"chat_template": "from json"})");
  EXPECT_EQ(open_model_files(folder.path()).chat_template, "from json");
  folder.write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]})");
  ModelFiles files = open_model_files(folder.path());
  EXPECT_EQ(files.chat_template, "D");
  ASSERT_EQ(files.named_templates.size(), 1u);
  EXPECT_EQ(files.named_templates[0], (std::pair<std::string, std::string>("tool_use", "T")));
  folder.write("tokenizer_config.json", R"({"chat_template": "plain"})");
  EXPECT_EQ(open_model_files(folder.path()).chat_template, "plain");
  folder.write("chat_template.jinja", "from jinja\n");
  folder.write("additional_chat_templates/rag.jinja", "R");
  files = open_model_files(folder.path());
  EXPECT_EQ(files.chat_template, "from jinja\n");
  EXPECT_EQ(files.named_templates[0].first, "rag");
  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "x"}]})");
  EXPECT_ERROR(open_model_files(folder.path()), "chat_template: neither a string nor a list");
}

TEST(ModelFiles, FlattensANestedTextConfig) {
  const Json outer = parse_json(
      R"({"architectures": ["Outer"], "model_type": "outer", "tie_word_embeddings": true, "torch_dtype": "float32",
          "rope_theta": 1, "image_token_id": 9, "vision_config": {}, "hidden_size": 1,
          "text_config": {"architectures": ["Inner"], "model_type": "inner", "tie_word_embeddings": false,
                          "dtype": "bfloat16", "rope_parameters": {"rope_theta": 5e5}, "hidden_size": 64}})",
      "test");
  const Json flat = flatten_config(outer);
  EXPECT_EQ(flat["architectures"][0], "Outer");
  EXPECT_EQ(flat["model_type"], "outer");
  EXPECT_EQ(flat["tie_word_embeddings"], true);
  EXPECT_EQ(flat["hidden_size"], 64);
  EXPECT_EQ(flat["image_token_id"], 9);
  EXPECT_FALSE(flat.contains("text_config"));
  EXPECT_FALSE(flat.contains("torch_dtype"));
  EXPECT_FALSE(flat.contains("rope_theta"));
  EXPECT_EQ(read_dtype(ConfigReader(flat)), DType::bf16);
  EXPECT_EQ(parse_rope(ConfigReader(flat), 64).theta, 5e5);
  EXPECT_EQ(flatten_config(flat), flat);
}

TEST(ModelFiles, FoldersThatAreNoModelsSayWhatToDo) {
  const TestFolder folder;
  EXPECT_ERROR(open_model_files(folder.path()), "config.json is missing");
  EXPECT_ERROR(open_model_files(folder / "x"), "no such folder or file");
  folder.write("params.json", "{}");
  EXPECT_ERROR(open_model_files(folder.path()), "Mistral's own layout");
  folder.write("config.json", "version https://git-lfs.github.com/spec/v1\n");
  EXPECT_ERROR(open_model_files(folder.path()), "Git LFS pointer");
  folder.write("config.json", R"({"rope_theta": Infinity})");
  EXPECT_ERROR(open_model_files(folder.path()), "config.json: not valid JSON at byte 16");
  folder.write("config.json", "[]");
  EXPECT_ERROR(open_model_files(folder.path()), "config.json: not a JSON object");
  folder.write("config.json", std::string(1000, '['));
  EXPECT_ERROR(open_model_files(folder.path()), "nested deeper");
}

TEST(ModelFiles, ReadsAGgufFile) {
  const TestFolder folder;
  const ModelFiles files = open_model_files(folder.write("m.gguf", tiny_gguf().build()));
  EXPECT_TRUE(files.is_gguf);
  EXPECT_EQ(files.config["hidden_size"], 32);
  EXPECT_EQ(files.eos_token_ids, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(files.bos_text, "<s>");
  EXPECT_EQ(files.eos_texts, std::vector<std::string>{"</s>"});
  EXPECT_EQ(files.chat_template, "{{ messages }}");
  EXPECT_EQ(files.gguf_tokenizer->tokens.size(), 5u);
  EXPECT_TRUE(files.generation_config.is_null());
}

// Real configs: every one must be readable by the helpers that all model files use.
TEST(ModelFiles, RealConfigsParse) {
  if (shared_folder().empty()) GTEST_SKIP() << "set ATOM_SHARED to the folder of reference data";
  int configs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(shared_folder() + "/configs")) {
    const std::string path = entry.path().string();
    const Json config = flatten_config(read_json_file(entry.path()));
    if (path.ends_with("hf_quant_config.json")) continue;
    SCOPED_TRACE(path);
    ++configs;
    const ConfigReader c(config, path);
    EXPECT_FALSE(c.texts("architectures").empty());
    const int64_t head_dim = read_head_dim(c);
    const auto rope_dim = c.integer_if("qk_rope_head_dim");
    RopeConfig rope;
    ASSERT_NO_THROW(rope = parse_rope(c, rope_dim.value_or(head_dim)));
    EXPECT_GE(rope.theta, 10000) << path;
    EXPECT_NO_THROW(read_dtype(c));
    if (path.find("Qwen3.5") != std::string::npos) {
      EXPECT_EQ(rope.rotary_dim, 64);
      EXPECT_EQ(rope.mrope_section.size(), 3u);
      EXPECT_EQ(c.boolean("tie_word_embeddings"), false);
    }
    if (path.find("DeepSeek-V3.2") != std::string::npos) {
      EXPECT_EQ(rope.type, RopeType::yarn);
      EXPECT_EQ(rope.factor, 40);
      EXPECT_EQ(rope.mscale_all_dim, 1.0);
    }
    if (path.find("GLM-5.2_") != std::string::npos) {
      EXPECT_EQ(rope.theta, 8e6);
      EXPECT_EQ(c.integers("eos_token_id").size(), 3u);
    }
    EXPECT_EQ(rope.truncate, path.find("gpt-oss") == std::string::npos);
    if (path.find("Qwen3-32B_") != std::string::npos) {
      EXPECT_EQ(head_dim, 128);
    }
  }
  EXPECT_GE(configs, 39);
}

TEST(ModelFiles, ModelOptsFileStandsInForAQuantizationConfig) {
  const TestFolder folder;
  folder.write("config.json", R"({"architectures":["LlamaForCausalLM"]})");
  folder.write("hf_quant_config.json",
               R"({"quantization":{"quant_algo":"FP8","exclude_modules":["lm_head"]}})");
  EXPECT_EQ(open_model_files(folder.path()).config["quantization_config"]["quant_algo"], "FP8");
  folder.write("config.json", R"({"quantization_config":{"quant_method":"fp8"}})");
  EXPECT_FALSE(open_model_files(folder.path()).config["quantization_config"].contains("quant_algo"));
}

}  // namespace
}  // namespace atom
