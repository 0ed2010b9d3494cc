// The indexer of sparse attention, and the schedule of layers that share one's choice.
#pragma once
#include <vector>

#include "checkpoint/config_keys.h"
#include "nn/linear.h"
#include "nn/norm.h"
#include "ops/indexer.h"

namespace atom::nn {

struct IndexerConfig {
  ops::IndexShape shape;
  int64_t topk = 0;
  bool rope_interleaved = false;
  std::vector<bool>
      owner;  // per layer: has an indexer; the others use the choice of the nearest owner before
  bool share_between_drafts = false;  // a drafter's later steps use the choice of its first
  // A layer behind all others is the drafter, which has an indexer.
  bool drafter(int64_t layer) const { return layer >= static_cast<int64_t>(owner.size()); }
  bool shared(int64_t layer) const { return !drafter(layer) && !owner[layer]; }
};

// index_n_heads, index_head_dim, index_topk and qk_rope_head_dim. Every layer is an owner.
IndexerConfig read_indexer(const ConfigReader& config, int64_t layers);

// Which layers own an indexer: indexer_types, else index_topk_pattern, else index_topk_freq with
// index_skip_topk_offset. Throws Error if a layer has no owner before it.
std::vector<bool> index_owners(const ConfigReader& config, int64_t layers);

// The carry that holds the choice: [tokens, topk] positions.
int declare_selection(const Scope& s, const IndexerConfig& config, int64_t layer);

// Every rank computes the whole choice, so that all agree on it.
class Indexer {
 public:
  Indexer(Scope s, int64_t hidden, int64_t q_rank, const ops::RopeParameters& rope,
          const IndexerConfig& config);
  // x: the layer's normalised input; q: its compressed query; selected: [tokens, topk], see ops::IndexSelect.
  void operator()(Ctx& c, Tensor x, Tensor q, Tensor selected) const;

 private:
  std::string path_;
  IndexerConfig config_;
  int rope_, cache_;  // handles
  ColumnLinear q_, key_weights_;
  Vector norm_weight_, norm_bias_;
};

}  // namespace atom::nn
