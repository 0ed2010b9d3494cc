// GGUF to Hugging Face terms: config, names, tokenizer description.
#include "checkpoint/gguf_model.h"

#include "checkpoint/gguf_builder.h"
#include "checkpoint/rope_config.h"
#include "checkpoint/test_folder.h"

namespace atom {
namespace {

using namespace testing;

GgufModel translate(const std::string& bytes) {
  return translate_gguf(parse_gguf(as_span(bytes), "x.gguf"), as_span(bytes));
}

TEST(GgufModel, TranslatesTheConfigOfALlama) {
  const Json config = translate(tiny_gguf().build()).config;
  EXPECT_EQ(config["architectures"], Json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(config["hidden_size"], 32);
  EXPECT_EQ(config["intermediate_size"], 64);
  EXPECT_EQ(config["num_hidden_layers"], 1);
  EXPECT_EQ(config["num_attention_heads"], 2);
  EXPECT_EQ(config["num_key_value_heads"], 1);
  EXPECT_EQ(config["head_dim"], 16);
  EXPECT_EQ(config["vocab_size"], 5);
  EXPECT_EQ(config["max_position_embeddings"], 128);
  EXPECT_EQ(config["rms_norm_eps"], 1e-5);  // not the widened 9.9999997e-06
  EXPECT_EQ(config["rope_theta"], 500000.0);
  EXPECT_FALSE(config.contains("rope_scaling"));
  EXPECT_EQ(config["rope_interleaved"], true);
  EXPECT_EQ(config["tie_word_embeddings"], true);
  EXPECT_EQ(config["attention_bias"], false);
  EXPECT_EQ(config["bos_token_id"], 0);
  EXPECT_EQ(config["eos_token_id"], Json::array({1, 2}));
}

TEST(GgufModel, OnlyLlamaRowsAreInterleaved) {
  const Json config = translate(tiny_gguf("qwen3").build()).config;
  EXPECT_EQ(config["architectures"], Json::array({"Qwen3ForCausalLM"}));
  EXPECT_EQ(config["rope_interleaved"], false);
}

TEST(GgufModel, OutputTensorUntiesTheEmbedding) {
  GgufBuilder b = tiny_gguf();
  b.tensor("output.weight", {32, 5}, 0, std::string(640, '\0'));
  EXPECT_EQ(translate(b.build()).config["tie_word_embeddings"], false);
}

TEST(GgufModel, ReadsTheTokenizer) {
  const GgufTokenizer t = translate(tiny_gguf().build()).tokenizer;
  EXPECT_EQ(t.model, "gpt2");
  EXPECT_EQ(t.pre, "llama-bpe");
  EXPECT_EQ(t.tokens.size(), 5u);
  EXPECT_EQ(t.types, (std::vector<int32_t>{3, 3, 3, 1, 1}));
  EXPECT_EQ(t.merges, std::vector<std::string>{"a b"});
  EXPECT_EQ(t.bos, 0);
  EXPECT_EQ(t.eos, 1);
  EXPECT_EQ(t.eot, 2);
  EXPECT_EQ(t.unk, std::nullopt);
  EXPECT_EQ(t.add_bos, true);
  EXPECT_EQ(t.add_eos, std::nullopt);
  EXPECT_EQ(t.chat_template, "{{ messages }}");
}

TEST(GgufModel, RopeFactorsBecomeDivisorsOfTheFrequencies) {
  GgufBuilder b = tiny_gguf();
  std::string factors;
  for (int i = 0; i < 8; ++i) factors += raw(1.0f + static_cast<float>(i));
  b.tensor("rope_freqs.weight", {8}, 0, factors);
  const Json config = translate(b.build()).config;
  const RopeConfig rope = parse_rope(ConfigReader(config), 16);
  EXPECT_EQ(rope.type, RopeType::plain);
  EXPECT_EQ(rope.freq_factors, (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_STREQ(gguf_ignored_reason("rope_freqs.weight"), "its values are part of the configuration");
}

TEST(GgufModel, TranslatesRopeScaling) {
  GgufBuilder yarn = tiny_gguf();
  yarn.text("llama.rope.scaling.type", "yarn").f32("llama.rope.scaling.factor", 4);
  yarn.u32("llama.rope.scaling.original_context_length", 32);
  const Json yarn_config = translate(yarn.build()).config;
  RopeConfig rope = parse_rope(ConfigReader(yarn_config), 16);
  EXPECT_EQ(rope.type, RopeType::yarn);
  EXPECT_EQ(rope.factor, 4);
  EXPECT_EQ(rope.original_max_position_embeddings, 32);
  EXPECT_EQ(rope.attention_factor, std::nullopt);

  GgufBuilder linear = tiny_gguf();
  linear.text("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 2);
  const Json linear_config = translate(linear.build()).config;
  rope = parse_rope(ConfigReader(linear_config), 16);
  EXPECT_EQ(rope.type, RopeType::linear);
  EXPECT_EQ(rope.factor, 2);

  EXPECT_ERROR(translate(tiny_gguf().text("llama.rope.scaling.type", "longrope").build()),
               "longrope is not supported");
}

TEST(GgufModel, RefusesWhatItCannotRun) {
  EXPECT_ERROR(translate(tiny_gguf("mamba").build()), "general.architecture mamba is not supported");
  EXPECT_ERROR(translate(tiny_gguf().u32("llama.expert_count", 8).build()), "mixture-of-experts");
  EXPECT_ERROR(translate(tiny_gguf().entry("split.count", 2, raw<uint16_t>(3)).build()), "split GGUF");
  EXPECT_ERROR(translate(tiny_gguf().u32("llama.attention.value_length", 8).build()),
               "differs from the key length");
  EXPECT_ERROR(translate(GgufBuilder().build()), "general.architecture is missing");
  EXPECT_ERROR(translate(tiny_gguf().u32("tokenizer.ggml.padding_token_id", 5).build()),
               "not one of the 5 tokens");
  EXPECT_ERROR(translate(tiny_gguf().list<float>("tokenizer.ggml.scores", kGgufF32, {1}).build()),
               "the numbers differ");
}

TEST(GgufModel, NamesTensorsAsHuggingFaceDoes) {
  EXPECT_EQ(gguf_to_hf_name("token_embd.weight"), "model.embed_tokens.weight");
  EXPECT_EQ(gguf_to_hf_name("output_norm.weight"), "model.norm.weight");
  EXPECT_EQ(gguf_to_hf_name("output.weight"), "lm_head.weight");
  EXPECT_EQ(gguf_to_hf_name("blk.3.attn_q.weight"), "model.layers.3.self_attn.q_proj.weight");
  EXPECT_EQ(gguf_to_hf_name("blk.10.attn_output.bias"), "model.layers.10.self_attn.o_proj.bias");
  EXPECT_EQ(gguf_to_hf_name("blk.0.attn_k_norm.weight"), "model.layers.0.self_attn.k_norm.weight");
  EXPECT_EQ(gguf_to_hf_name("blk.0.ffn_norm.weight"), "model.layers.0.post_attention_layernorm.weight");
  EXPECT_EQ(gguf_to_hf_name("blk.0.ffn_down.weight"), "model.layers.0.mlp.down_proj.weight");
  for (const char* other : {"", "blk", "blk.x.attn_q.weight", "blk.01.attn_q.weight", "blk.-1.attn_q.weight",
                            "blk.1.attn_q", "blk.1attn_q.weight", "blk.99999999999.attn_q.weight",
                            "blk.1.ffn_gate_exps.weight", "rope_freqs.weight"}) {
    EXPECT_EQ(gguf_to_hf_name(other), std::nullopt) << other;
  }
}

}  // namespace
}  // namespace atom
