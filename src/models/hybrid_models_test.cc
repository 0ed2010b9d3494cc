// The hybrid models at the size of real checkpoints: what they declare, and what a sequence's state costs.
#include <gtest/gtest.h>

#include "base/json.h"
#include "models/registry.h"

namespace atom {
namespace {

// Qwen/Qwen3.5-27B, without what the text model does not read.
constexpr const char* kQwen35 = R"({
  "architectures": ["Qwen3_5ForConditionalGeneration"], "tie_word_embeddings": false,
  "attention_bias": false, "attn_output_gate": true, "full_attention_interval": 4, "head_dim": 256,
  "hidden_act": "silu", "hidden_size": 5120, "intermediate_size": 17408, "linear_conv_kernel_dim": 4,
  "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 48,
  "linear_value_head_dim": 128, "max_position_embeddings": 262144, "num_attention_heads": 24,
  "num_hidden_layers": 64, "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "vocab_size": 248320,
  "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10], "rope_type": "default",
                      "rope_theta": 10000000, "partial_rotary_factor": 0.25}})";

ModelTables declare(const Json& config, const Mesh& mesh = {}) {
  ModelTables tables;
  tables.mesh = mesh;
  make_model(Scope(tables), ConfigReader(config));
  return tables;
}

int64_t parameters(const ModelTables& tables) {
  int64_t sum = 0;
  for (const ParamEntry& param : tables.params) {
    for (const Piece& piece : param.pieces) sum += piece.rows * piece.cols;
  }
  return sum;
}

TEST(HybridModels, DeclareEveryParameterOfTheCheckpoint) {
  const ModelTables tables = declare(Json::parse(kQwen35));
  const int64_t hidden = 5120, channels = 2 * 16 * 128 + 48 * 128, values = 48 * 128;
  const int64_t delta = (channels + values + 2 * 48) * hidden + channels * 4 + 2 * 48 + 128 + hidden * values;
  const int64_t full = (2 * 24 + 2 * 4) * 256 * hidden + 2 * 256 + hidden * 24 * 256;
  const int64_t every = 3 * hidden * 17408 + 2 * hidden;
  EXPECT_EQ(parameters(tables), 48 * delta + 16 * full + 64 * every + 2 * 248320 * hidden + hidden);
  EXPECT_EQ(tables.caches.size(), 16u);
  EXPECT_EQ(tables.states.size(), 48u);
  EXPECT_EQ(tables.params[2].pieces.front().any_of.front().name,
            "model.language_model.layers.0.input_layernorm.weight");
}

TEST(HybridModels, RanksDivideTheState) {
  const ModelTables whole = declare(Json::parse(kQwen35));
  EXPECT_EQ(whole.states.front().recurrent, 48 * 128 * 128);
  EXPECT_EQ(whole.states.front().conv, 3 * 10240);
  const auto comms = in_process_communicators(8);
  const Mesh mesh{.attn = comms[5].get(), .mlp = comms[5].get(), .expert = comms[5].get()};
  const ModelTables part = declare(Json::parse(kQwen35), mesh);
  EXPECT_EQ(part.states.front().recurrent * 8, whole.states.front().recurrent);
  EXPECT_EQ(part.states.front().conv * 8, whole.states.front().conv);
}

TEST(HybridModels, LayerTypesOutrankTheInterval) {
  Json config = Json::parse(kQwen35);
  config["num_hidden_layers"] = 3;
  config["layer_types"] = {"full_attention", "full_attention", "linear_attention"};
  EXPECT_EQ(declare(config).caches.size(), 2u);
  config["layer_types"] = {"full_attention", "sliding_attention", "linear_attention"};
  EXPECT_THROW(declare(config), Error);
  config["layer_types"] = {"full_attention"};
  EXPECT_THROW(declare(config), Error);
}

TEST(HybridModels, ExpertsComeWithASharedOne) {
  Json config = Json::parse(kQwen35);
  config.update({{"architectures", {"Qwen3NextForCausalLM"}},
                 {"num_hidden_layers", 2},
                 {"num_experts", 4},
                 {"num_experts_per_tok", 2},
                 {"moe_intermediate_size", 512},
                 {"shared_expert_intermediate_size", 512},
                 {"mlp_only_layers", {1}}});
  const ModelTables tables = declare(config);
  bool shared = false, dense = false, packed = false;
  for (const ParamEntry& param : tables.params) {
    const std::string& name = param.pieces.front().any_of.front().name;
    shared |= name == "model.layers.0.mlp.shared_expert_gate.weight";
    dense |= name == "model.layers.1.mlp.gate_proj.weight";
    packed |= name == "model.layers.0.linear_attn.in_proj_qkvz.weight";
  }
  EXPECT_TRUE(shared && dense && packed);
}

}  // namespace
}  // namespace atom
