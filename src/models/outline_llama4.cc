// Llama 4's text model: chunked attention in three of four layers, experts beside a shared one in every
// interleave_moe_layer_step-th layer.
#include "models/outline.h"

namespace atom {

Outline outline_llama4(const Scope& s, const ConfigReader& c) {
  const int64_t hidden = c.integer("hidden_size", 1);
  const int64_t layers = read_layers(c);
  const int64_t heads = c.integer("num_attention_heads", 1, 65536);
  const int64_t kv_heads = c.integer_or("num_key_value_heads", heads, 1, 65536);
  const int64_t head_dim = c.integer_or("head_dim", hidden / heads, 1, 65536);
  const int64_t inter = c.integer("intermediate_size", 1);
  const int64_t experts = c.integer("num_local_experts", 1, 65536);
  const int64_t chosen = c.integer_or("num_experts_per_tok", 1, 1, experts);
  const int64_t expert_step = c.integer_or("interleave_moe_layer_step", 1, 1);
  const int64_t chunk = c.integer_or("attention_chunk_size", 8192, 1);
  constexpr int64_t kWholeAttentionStep = 4;  // layers without rope, which see every token
  outline::frame(s, c);
  Outline result;
  const int64_t kv_bytes = 2 * 2 * kv_heads * head_dim;
  for (int64_t i = 0; i < layers; ++i) {
    const Scope layer = s / "model" / "layers" / i, attention = layer / "self_attn";
    outline::attention(attention, hidden, heads, kv_heads, head_dim);
    const Scope mlp = layer / "feed_forward";
    if ((i + 1) % expert_step == 0) {
      outline::weight(mlp, "router", experts, hidden);
      outline::experts(mlp, hidden, inter, experts, chosen);
      outline::gated_mlp(mlp / "shared_expert", hidden, inter);
    } else {
      outline::gated_mlp(mlp, hidden, c.integer("intermediate_size_mlp", 1));
    }
    outline::block_norms(layer, hidden);
    const bool whole = (i + 1) % kWholeAttentionStep == 0;
    result.windows.push_back(whole ? 0 : chunk);
    result.kv_per_token += kv_bytes;
    if (!whole) result.sliding_per_token += kv_bytes;
  }
  return result;
}

}  // namespace atom
