#include "models/qwen3_hybrid.h"

#include <fmt/core.h>

#include <algorithm>

#include "nn/layer_windows.h"
#include "nn/rope.h"

namespace atom {
namespace {

// `layer_types` decides where it is present, else every full_attention_interval-th layer is full.
std::vector<bool> full_attention_layers(const ConfigReader& c, int64_t layers) {
  const std::vector<std::string> types = c.texts("layer_types");
  std::vector<bool> full;
  if (types.empty()) {
    const int64_t interval = c.integer_or("full_attention_interval", 4, 1);
    for (int64_t i = 0; i < layers; ++i) full.push_back((i + 1) % interval == 0);
    return full;
  }
  if (static_cast<int64_t>(types.size()) != layers) {
    throw c.error("layer_types", fmt::format("{} entries for {} layers", types.size(), layers));
  }
  for (const std::string& type : types) {
    if (type != "full_attention" && type != "linear_attention") {
      throw c.error("layer_types", fmt::format("\"{}\": this architecture has full_attention and "
                                               "linear_attention layers",
                                               type));
    }
    full.push_back(type == "full_attention");
  }
  return full;
}

// All layers, if there are experts at all, but those that are listed or off the grid.
std::vector<bool> sparse_layers(const ConfigReader& c, int64_t layers) {
  std::vector<bool> sparse;
  const int64_t step = c.integer_or("decoder_sparse_step", 1, 1);
  for (int64_t i = 0; i < layers; ++i) {
    sparse.push_back(c.integer_or("num_experts", 0) > 0 && (i + 1) % step == 0);
  }
  for (const int64_t i : c.integers("mlp_only_layers")) {
    if (i < layers) sparse[i] = false;
  }
  return sparse;
}

std::variant<nn::GatedAttention, nn::DeltaNet> make_mixer(const Scope& s, const HybridConfig& c,
                                                          int64_t index) {
  if (c.full_attention[index]) return nn::GatedAttention(s / "self_attn", c.hidden, c.attention);
  return nn::DeltaNet(s / "linear_attn", c.hidden, c.delta);
}

}  // namespace

HybridConfig::HybridConfig(const Scope& s, const ConfigReader& c, nn::DeltaNetConfig::Packing packing)
    : layers(read_layers(c)),
      hidden(c.integer("hidden_size", 1)),
      inter(c.integer_or("intermediate_size", 0, 1)),
      vocab(c.integer("vocab_size", 1)),
      eps(read_norm_eps(c, 1e-6)),
      tied(c.boolean_or("tie_word_embeddings", false)),
      full_attention(full_attention_layers(c, layers)),
      sparse(sparse_layers(c, layers)),
      drafter(nn::qwen_drafter(s, c, layers)) {
  full_attention.push_back(true);
  sparse.push_back(c.integer_or("num_experts", 0) > 0);
  if (std::ranges::find(sparse, false) != sparse.end()) inter = c.integer("intermediate_size", 1);
  const int64_t head_dim = c.integer_or("head_dim", 256, 1);
  const RopeDefaults rope{.theta = 10000.0, .partial_rotary_factor = 0.25};
  attention = {.heads = c.integer("num_attention_heads", 1),
               .kv_heads = c.integer("num_key_value_heads", 1),
               .head_dim = head_dim,
               // Text has equal positions in all mrope sections, which is the plain rope.
               .rope = nn::rope_parameters(parse_rope(c, head_dim, rope)),
               .norm_eps = eps,
               .bias = c.boolean_or("attention_bias", false)};
  delta = {.packing = packing,
           .k_heads = c.integer_or("linear_num_key_heads", 16, 1),
           .v_heads = c.integer_or("linear_num_value_heads", 32, 1),
           .k_dim = c.integer_or("linear_key_head_dim", 128, 1, 1024),
           .v_dim = c.integer_or("linear_value_head_dim", 128, 1, 1024),
           .kernel = c.integer_or("linear_conv_kernel_dim", 4, 2, 16),
           .eps = eps};
  if (delta.v_heads % delta.k_heads != 0) {
    throw c.error("linear_num_value_heads",
                  fmt::format("{} is not a multiple of the {} key heads", delta.v_heads, delta.k_heads));
  }
  if (std::ranges::find(sparse, true) != sparse.end()) {
    moe.router = {.experts = c.integer("num_experts", 1, nn::kMaxExperts),
                  .top_k = c.integer("num_experts_per_tok", 1),
                  .renormalize = c.boolean_or("norm_topk_prob", true)};
    moe.experts.inter = c.integer("moe_intermediate_size", 1);
    moe.shared = {.inter = c.integer("shared_expert_intermediate_size", 1),
                  .name = "shared_expert",
                  .gate = "shared_expert_gate"};
  }
  if (!c.boolean_or("attn_output_gate", true)) {
    throw c.error("attn_output_gate", "false is not supported; this architecture gates its attention");
  }
  nn::require_silu(c);
}

HybridLayer::HybridLayer(Scope s, const HybridConfig& c, int64_t index)
    : mixer_norm(s / "input_layernorm", c.hidden, c.eps, c.norm_weight_offset),
      mlp_norm(s / "post_attention_layernorm", c.hidden, c.eps, c.norm_weight_offset),
      mixer(make_mixer(s, c, index)),
      mlp(s / "mlp", c.hidden, c.sparse[index] ? &c.moe : nullptr, c.inter) {}

void HybridLayer::operator()(Ctx& c, nn::Residual& h) const {
  std::visit([&](const auto& block) { h.apply(c, mixer_norm, block); }, mixer);
  h.apply(c, mlp_norm, mlp);
}

void HybridLayer::keep_rows(Ctx& c) const {
  if (const auto* delta = std::get_if<nn::DeltaNet>(&mixer)) delta->keep_rows(c);
}

}  // namespace atom
