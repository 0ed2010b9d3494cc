// Gated delta net: linear attention with a recurrent state in place of a cache.
#pragma once
#include "nn/linear.h"
#include "ops/gated_delta.h"

namespace atom::nn {

struct DeltaNetConfig {
  // How the input projections lie in the checkpoint.
  enum class Packing : uint8_t {
    grouped,   // in_proj_qkvz, per key head [q | k | v heads | z heads]; in_proj_ba, per key head [b | a]
    separate,  // in_proj_qkv [q | k | v], in_proj_z, in_proj_b, in_proj_a
  };
  Packing packing = Packing::separate;
  int64_t k_heads = 0, v_heads = 0, k_dim = 0, v_dim = 0;
  int64_t kernel = 0;  // of the causal convolution
  float eps = 0;       // of the output norm

  int64_t values_per_key() const { return v_heads / k_heads; }
};

// The heads of one rank: its value heads, and the key heads they use. With more ranks than key heads,
// neighbours share one.
struct DeltaHeads {
  Range k, v;
};

class DeltaNet {
 public:
  DeltaNet(Scope s, int64_t hidden, const DeltaNetConfig& config);
  Partial operator()(Ctx& c, Tensor x) const;
  // See Model::keep_rows: the recurrences again, over what the rows were computed from.
  void keep_rows(Ctx& c) const;

 private:
  int64_t values() const { return heads_.v.count * config_.v_dim; }
  int64_t channels() const { return 2 * heads_.k.count * config_.k_dim + values(); }
  // What becomes of rows of the input projection; norm.x of the result is [tokens, values].
  ops::GatedDelta recurrence(Ctx& c, Tensor in) const;
  const DeltaNetConfig config_;
  const DeltaHeads heads_;  // of this rank
  int state_;               // handle
  Matrix in_;               // q, k, v, z, b, a
  Vector conv_, a_log_, dt_bias_;
  RmsNorm norm_;
  RowLinear out_;
};

// The pieces of the fused input projection, in the order q, k, v, z, b, a.
std::vector<Piece> delta_net_inputs(const Scope& s, int64_t hidden, const DeltaNetConfig& config,
                                    const DeltaHeads& heads);

}  // namespace atom::nn
