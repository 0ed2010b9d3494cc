// The anatomy of models as published, from their configs.
#include "runtime/anatomy.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "base/error.h"
#include "checkpoint/model_files.h"

namespace atom {
namespace {

using Attention = LayerAnatomy::Attention;
using Indexer = LayerAnatomy::Indexer;

Json config_of(const std::filesystem::path& path) { return flatten_config(read_json_file(path)); }

Anatomy with_drafter(const Json& config) {
  return anatomy(LogicalModel(config, {.drafter = has_drafter(config), .outlines = true}));
}

Anatomy anatomy_of(const std::string& name) {
  return with_drafter(
      config_of(std::filesystem::path(ATOM_TEST_DATA) / "data" / "configs" / (name + ".json")));
}

double billions(int64_t count) { return static_cast<double>(count) * 1e-9; }

TEST(Anatomy, FindsThePublishedFiguresOfGlm52) {
  const Anatomy a = anatomy_of("glm-5.2");
  const ParameterCount all = a.parameters();
  EXPECT_NEAR(billions(all.total), 753.3, 0.05);
  EXPECT_NEAR(billions(all.active), 41.25, 0.005);
  const auto total = [&](Component component) { return billions(a.component(component).total); };
  const auto active = [&](Component component) { return billions(a.component(component).active); };
  EXPECT_NEAR(total(Component::routed_experts), 724.78, 0.005);
  EXPECT_NEAR(total(Component::attention), 12.87, 0.005);
  EXPECT_NEAR(total(Component::draft_block), 9.95, 0.005);
  EXPECT_NEAR(total(Component::shared_experts), 2.83, 0.005);
  EXPECT_NEAR(total(Component::vocabulary), 1.90, 0.005);
  EXPECT_NEAR(total(Component::dense_mlp), 0.68, 0.005);
  EXPECT_NEAR(total(Component::indexer), 0.20, 0.005);
  EXPECT_NEAR(total(Component::gate), 0.12, 0.005);
  EXPECT_NEAR(active(Component::routed_experts) + active(Component::shared_experts), 25.48, 0.005);
  EXPECT_EQ(a.component(Component::draft_block).active, 0);
  EXPECT_EQ(a.draft_layers, 1);
  EXPECT_EQ(a.cache.kv_per_token, 89'856);
  EXPECT_EQ(a.cache.index_per_token, 2'772);
  EXPECT_EQ(a.cache.state_per_request, 0);
}

TEST(Anatomy, FindsWhichLayersOfGlm52OwnAnIndexer) {
  const Anatomy a = anatomy_of("glm-5.2");
  ASSERT_EQ(a.layers.size(), 78);
  EXPECT_EQ(a.indexers(Indexer::own), 21);
  EXPECT_EQ(a.indexers(Indexer::shared), 57);
  for (int64_t i = 0; i < 78; ++i) {
    const bool own = i < 3 || (i - 2) % 4 == 0;
    EXPECT_EQ(a.layers[i].indexer, own ? Indexer::own : Indexer::shared) << i;
    EXPECT_EQ(a.layers[i].attention, Attention::latent) << i;
    EXPECT_EQ(a.layers[i].experts, i >= 3) << i;
  }
}

TEST(Anatomy, FindsTheIndexersOfGlm52FromItsFrequencyToo) {
  Json config = config_of(std::filesystem::path(ATOM_TEST_DATA) / "data/configs/glm-5.2.json");
  const Anatomy listed = anatomy(LogicalModel(config));
  ASSERT_GT(config.erase("indexer_types"), 0);
  const Anatomy computed = anatomy(LogicalModel(config));
  for (size_t i = 0; i < listed.layers.size(); ++i)
    EXPECT_EQ(computed.layers[i].indexer, listed.layers[i].indexer) << i;
  EXPECT_EQ(computed.parameters().total, listed.parameters().total);
}

TEST(Anatomy, AnArchitectureThatCannotRunIsStillUnfolded) {
  const Anatomy v4 = anatomy_of("deepseek-v4-flash");
  EXPECT_FALSE(v4.supported);
  EXPECT_EQ(v4.layers[0].attention, Attention::sliding);
  EXPECT_EQ(v4.layers[0].window, 128);
  EXPECT_EQ(v4.layers[2].indexer, Indexer::own);
  EXPECT_EQ(v4.layers[3].indexer, Indexer::none);
  EXPECT_EQ(v4.cache.index_per_token, 21 * 33);  // one key of 128 lanes for four tokens
  // Two layers that differ in attention and feed-forward: hidden 8, 2 heads of 4, 1 for keys and values.
  const Json llama4 = {{"architectures", {"Llama4ForCausalLM"}},
                       {"hidden_size", 8},
                       {"num_hidden_layers", 2},
                       {"num_attention_heads", 2},
                       {"num_key_value_heads", 1},
                       {"head_dim", 4},
                       {"intermediate_size", 6},
                       {"intermediate_size_mlp", 10},
                       {"num_local_experts", 4},
                       {"num_experts_per_tok", 1},
                       {"interleave_moe_layer_step", 2},
                       {"vocab_size", 16}};
  const Anatomy a = anatomy(LogicalModel(llama4, {.outlines = true}));
  const int64_t attention = 2 * 8 * 8 + 2 * 4 * 8;
  EXPECT_EQ(a.layers[0].parameters.total, attention + 3 * 8 * 10 + 2 * 8);
  EXPECT_EQ(a.layers[1].parameters.total, attention + 5 * 3 * 8 * 6 + 4 * 8 + 2 * 8);
  EXPECT_EQ(a.layers[1].parameters.active, attention + 2 * 3 * 8 * 6 + 4 * 8 + 2 * 8);
  EXPECT_EQ(a.parameters().total,
            a.layers[0].parameters.total + a.layers[1].parameters.total + 2 * 16 * 8 + 8);
  EXPECT_THROW(LogicalModel{llama4}, Error);
}

TEST(Anatomy, WindowLayersAreTold) {
  const Anatomy a = anatomy_of("gpt-oss-20b");
  for (size_t i = 0; i < a.layers.size(); ++i) {
    EXPECT_EQ(a.layers[i].attention, i % 2 == 0 ? Attention::sliding : Attention::full) << i;
    EXPECT_EQ(a.layers[i].window, i % 2 == 0 ? 128 : 0) << i;
    EXPECT_EQ(a.layers[i].indexer, Indexer::none);
  }
  EXPECT_EQ(a.cache.kv_per_token, 24 * 2048);
  EXPECT_EQ(a.cache.sliding_per_token, 12 * 2048);
}

// 4 of 32 experts, biases included; the rest of the model whole.
TEST(Anatomy, TokensTouchTheBiasesOfChosenExpertsOnly) {
  const Anatomy a = anatomy_of("gpt-oss-20b");
  const int64_t expert = 3 * 2880 * 2880 + 3 * 2880;
  EXPECT_EQ(a.component(Component::routed_experts).total, 24 * 32 * expert);
  EXPECT_EQ(a.component(Component::routed_experts).active, 24 * 4 * expert);
}

TEST(Anatomy, RecurrentLayersKeepStateAndNoTokens) {
  const Anatomy a = anatomy_of("qwen3.5-35b-a3b");
  int64_t linear = 0;
  for (size_t i = 0; i < a.layers.size(); ++i) {
    EXPECT_EQ(a.layers[i].attention, i % 4 == 3 ? Attention::full : Attention::linear) << i;
    linear += a.layers[i].attention == Attention::linear;
  }
  EXPECT_EQ(linear, 30);
  EXPECT_EQ(a.cache.kv_per_token, 10 * 2 * 2 * 256 * 2);
  EXPECT_EQ(a.cache.state_per_request, 30 * 4 * (3 * (2 * 16 + 32) * 128 + 32 * 128 * 128));
  EXPECT_GT(a.component(Component::linear_attention).total, a.component(Component::attention).total);
  EXPECT_EQ(a.draft_layers, 1);
}

TEST(Anatomy, KnowsWherePathsBelong) {
  EXPECT_EQ(component_of("model.embed_tokens.weight"), Component::vocabulary);
  EXPECT_EQ(component_of("lm_head.weight"), Component::vocabulary);
  EXPECT_EQ(component_of("model.norm.weight"), Component::norms);
  EXPECT_EQ(component_of("model.layers.3.mlp.gate|up.weight"), Component::dense_mlp);
  EXPECT_EQ(component_of("model.layers.3.mlp.experts.9.gate|up.weight"), Component::routed_experts);
  EXPECT_EQ(component_of("model.layers.3.mlp.shared_experts.gate_proj|up_proj.weight"),
            Component::shared_experts);
  EXPECT_EQ(component_of("model.layers.3.mlp.shared_expert_gate.weight"), Component::shared_experts);
  EXPECT_EQ(component_of("model.layers.3.mlp.gate.e_score_correction_bias"), Component::gate);
  EXPECT_EQ(component_of("model.layers.3.mlp.router.bias"), Component::gate);
  EXPECT_EQ(component_of("model.layers.3.self_attn.q_norm.weight"), Component::attention);
  EXPECT_EQ(component_of("model.layers.3.self_attn.indexer.k_norm.bias"), Component::indexer);
  EXPECT_EQ(component_of("model.layers.3.linear_attn.norm.weight"), Component::linear_attention);
  EXPECT_EQ(layer_of("model.language_model.layers.17.mlp.gate.weight"), 17);
  EXPECT_EQ(layer_of("model.norm.weight"), std::nullopt);
  EXPECT_EQ(layer_of("layers.x.norm"), std::nullopt);
}

TEST(UnfoldLayer, FoldsExpertsIntoOneLine) {
  const LogicalModel model(
      config_of(std::filesystem::path(ATOM_TEST_DATA) / "data/configs/qwen3-30b-a3b.json"));
  const std::vector<TensorLine> lines = unfold_layer(model, 5, nullptr);
  int64_t parameters = 0;
  bool found = false;
  for (const TensorLine& line : lines) {
    parameters += line.rows * line.cols * line.count;
    if (line.name != "mlp.experts.*.down_proj.weight") continue;
    found = true;
    EXPECT_EQ(line.count, 128);
    EXPECT_EQ(line.rows, 2048);
    EXPECT_EQ(line.cols, 768);
  }
  EXPECT_TRUE(found);
  EXPECT_EQ(parameters, anatomy(model).layers[5].parameters.total);
}

// What publishers say: parameters of the model without its drafting layers, in billions, and the tolerance
// that their rounding leaves.
struct Published {
  const char* config;
  double billions, tolerance;
};
constexpr Published kCommitted[] = {
    {"glm-5.2", 743.4, 0.5},       {"gpt-oss-20b", 20.91, 0.01},         {"qwen3-32b", 32.8, 0.05},
    {"qwen3-30b-a3b", 30.5, 0.05}, {"qwen3.5-35b-a3b", 35, 0.5},         {"deepseek-v3", 671, 0.5},
    {"mixtral-8x7b", 46.7, 0.05},  {"deepseek-v4-flash", 284.33, 0.005},
};
constexpr Published kShared[] = {
    {"MiniMaxAI--MiniMax-M2.5", 228.7, 0.1},
    {"MiniMaxAI--MiniMax-M2.7", 228.7, 0.1},
    {"MiniMaxAI--MiniMax-M3", 426.17, 0.005},
    {"Qwen--Qwen3-0.6B", 0.6, 0.01},
    {"Qwen--Qwen3-8B", 8.2, 0.05},
    {"Qwen--Qwen3-32B", 32.8, 0.05},
    {"Qwen--Qwen3-32B-FP8", 32.8, 0.05},
    {"Qwen--Qwen3-32B-FP8-Static-PerTensor", 32.8, 0.05},
    {"Qwen--Qwen3-30B-A3B", 30.5, 0.05},
    {"Qwen--Qwen3-30B-A3B-FP8", 30.5, 0.05},
    {"Qwen--Qwen3-235B-A22B", 235, 0.5},
    {"Qwen--Qwen3-235B-A22B-FP8", 235, 0.5},
    {"Qwen--Qwen3-Coder-480B-A35B-Instruct", 480, 0.5},
    {"Qwen--Qwen3.5-27B", 27, 0.5},
    {"Qwen--Qwen3.5-35B-A3B", 35, 0.5},
    {"Qwen--Qwen3.5-122B-A10B", 122, 0.5},
    {"Qwen--Qwen3.5-397B-A17B", 397, 1},
    {"deepseek-ai--DeepSeek-R1", 671, 0.5},
    {"deepseek-ai--DeepSeek-V3", 671, 0.5},
    {"deepseek-ai--DeepSeek-V3.2", 671, 1},  // with its indexers 671.9
    {"deepseek-ai--DeepSeek-V4-Flash", 284.33, 0.005},
    {"meta-llama--Llama-4-Maverick-17B-128E-Instruct", 400.71, 0.005},
    {"meta-llama--Llama-4-Scout-17B-16E-Instruct", 107.77, 0.005},  // 109 with its vision tower
    {"meta-llama--Meta-Llama-3.1-8B", 8.03, 0.005},
    {"meta-llama--Meta-Llama-3.1-70B", 70.6, 0.1},
    {"meta-llama--Meta-Llama-3.1-405B", 405.9, 0.1},
    {"mistralai--Mixtral-8x7B-v0.1", 46.7, 0.05},
    {"mistralai--Mixtral-8x22B-v0.1", 140.6, 0.1},
    {"moonshotai--Kimi-K2-Instruct", 1026, 1},
    {"moonshotai--Kimi-K2.5", 1026, 1},
    {"nvidia--GLM-5.2-NVFP4", 743.4, 0.5},
    {"nvidia--Llama-3.1-70B-Instruct-FP8", 70.6, 0.1},
    {"openai--gpt-oss-20b", 20.91, 0.01},
    {"openai--gpt-oss-120b", 116.83, 0.01},
    {"zai-org--GLM-5", 744, 0.5},
    {"zai-org--GLM-5-FP8", 744, 0.5},
    {"zai-org--GLM-5.1", 744, 0.5},
    {"zai-org--GLM-5.1-FP8", 744, 0.5},
    {"zai-org--GLM-5.2", 743.4, 0.5},
    {"zai-org--GLM-5.2-FP8", 743.4, 0.5},
};

void expect_published(const Published& published, const std::filesystem::path& path) {
  const Anatomy a = with_drafter(config_of(path));
  const int64_t own = a.parameters().total - a.component(Component::draft_block).total;
  EXPECT_NEAR(billions(own), published.billions, published.tolerance) << published.config;
  int64_t layers = 0;
  for (const LayerAnatomy& layer : a.layers) layers += layer.parameters.total;
  EXPECT_LE(layers, own);
}

TEST(Anatomy, TotalsAgreeWithPublishedSizes) {
  for (const Published& published : kCommitted) {
    expect_published(published, std::filesystem::path(ATOM_TEST_DATA) / "data" / "configs" /
                                    (std::string(published.config) + ".json"));
  }
}

TEST(Anatomy, TotalsOfAllRealConfigsAgreeWithPublishedSizes) {
  const char* shared = std::getenv("ATOM_SHARED");
  if (shared == nullptr) GTEST_SKIP() << "ATOM_SHARED is not set";
  std::set<std::string> named;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(shared) / "configs")) {
    const std::string file = entry.path().filename().string();
    if (file.ends_with("_config.json") && !file.ends_with("_hf_quant_config.json"))
      named.insert(file.substr(0, file.size() - std::string_view("_config.json").size()));
  }
  for (const Published& published : kShared) {
    named.erase(published.config);
    expect_published(published, std::filesystem::path(shared) / "configs" /
                                    (std::string(published.config) + "_config.json"));
  }
  EXPECT_TRUE(named.empty()) << *named.begin() << " is not in the list";
}

}  // namespace
}  // namespace atom
