// MiniMax-M3: grouped-query attention in which most layers choose blocks of keys by an indexer, and experts
// after a few dense layers.
#include "models/outline.h"

namespace atom {

Outline outline_minimax_m3(const Scope& s, const ConfigReader& c) {
  const int64_t hidden = c.integer("hidden_size", 1);
  const int64_t layers = read_layers(c);
  const int64_t heads = c.integer("num_attention_heads", 1, 65536);
  const int64_t kv_heads = c.integer("num_key_value_heads", 1, 65536);
  const int64_t head_dim = c.integer("head_dim", 1, 65536);
  const int64_t inter = c.integer("intermediate_size", 1);
  const int64_t experts = c.integer("num_local_experts", 1, 65536);
  const int64_t chosen = c.integer("num_experts_per_tok", 1, experts);
  const int64_t shared =
      c.integer_or("n_shared_experts", 1, 0, 64) * c.integer("shared_intermediate_size", 1);
  const auto sparse = c.section("sparse_attention_config");
  if (!sparse) throw c.error("sparse_attention_config", "missing");
  const int64_t index_heads = sparse->integer("sparse_num_index_heads", 1, 65536);
  const int64_t index_dim = sparse->integer("sparse_index_dim", 1, 65536);
  const auto per_layer = [&](const ConfigReader& place, std::string_view key) {
    std::vector<int64_t> values = place.integers(key, 0, 1);
    if (std::ssize(values) != layers) throw place.error(key, "must have one value per layer");
    return values;
  };
  const std::vector<int64_t> selects = per_layer(*sparse, "sparse_attention_freq");
  const std::vector<int64_t> routes = per_layer(c, "moe_layer_freq");
  outline::frame(s, c);
  Outline result{.windows = std::vector<int64_t>(static_cast<size_t>(layers))};
  for (int64_t i = 0; i < layers; ++i) {
    const Scope layer = s / "model" / "layers" / i, attention = layer / "self_attn", mlp = layer / "mlp";
    outline::attention(attention, hidden, heads, kv_heads, head_dim);
    outline::norm(attention, "q_norm", head_dim);
    outline::norm(attention, "k_norm", head_dim);
    result.kv_per_token += 2 * 2 * kv_heads * head_dim;
    if (selects[i] != 0) {
      const Scope indexer = attention / "indexer";
      outline::weight(indexer, "q_proj", index_heads * index_dim, hidden);
      outline::weight(indexer, "k_proj", index_dim, hidden);
      outline::norm(indexer, "q_norm", index_dim);
      outline::norm(indexer, "k_norm", index_dim);
      result.index_per_token += outline::index_key_bytes(index_dim);
    }
    if (routes[i] != 0) {
      outline::weight(mlp, "gate", experts, hidden);
      mlp.vector("e_score_correction_bias", experts);
      outline::experts(mlp, hidden, inter, experts, chosen);
      if (shared > 0) outline::gated_mlp(mlp / "shared_experts", hidden, shared);
    } else {
      outline::gated_mlp(mlp, hidden, c.integer("dense_intermediate_size", 1));
    }
    outline::block_norms(layer, hidden);
  }
  return result;
}

}  // namespace atom
