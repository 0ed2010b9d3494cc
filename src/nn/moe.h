// Routed experts, with or without experts that every token shares.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "nn/mlp.h"
#include "ops/moe_block.h"

namespace atom::nn {

using ops::ExpertActivation;
using ops::RouterScore;

inline constexpr int64_t kMaxExperts = 8192;  // of a layer that a config may announce

// How tokens choose. Names are checkpoint tensors relative to the block's scope.
struct RouterConfig {
  int64_t experts = 0;
  int64_t top_k = 0;
  RouterScore score = RouterScore::softmax;
  bool renormalize = false;
  float scale = 1;
  int64_t groups = 1, top_groups = 1;
  std::string name = "gate";  // <name>.weight [experts, hidden]
  bool bias = false;          // <name>.bias [experts], part of the logits
  std::string correction;  // [experts]: changes the choice only, for example "gate.e_score_correction_bias"
};

// How a checkpoint stacks all experts in one tensor.
enum class FusedLayout : uint8_t {
  out_in,              // gate_up_proj [E, 2I, H], gate rows before up rows; down_proj [E, H, I]
  in_out_interleaved,  // gate_up_proj [E, H, 2I], gate in even and up in odd columns; down_proj [E, I, H]
};

// One routed expert. Its tensors are experts.N.<gate|up|down>.weight or the fused experts.gate_up_proj and
// experts.down_proj, whichever the checkpoint has. in_out matrices are turned when they are loaded, into
// memory of their own; all others stay where they are.
struct ExpertConfig {
  int64_t inter = 0;
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
  FusedLayout fused = FusedLayout::out_in;
  bool bias = false;  // experts.gate_up_proj_bias [E, 2I] in the order of gate_up_proj, down_proj_bias [E, H]
  ExpertActivation activation = ExpertActivation::silu;
  float limit = 0, alpha = 0;
};

// A dense block for every token, whose result is added to that of the routed experts.
struct SharedExpertConfig {
  int64_t inter = 0;                    // of all shared experts together
  std::string name = "shared_experts";  // <name>.{gate,up,down}_proj.weight
  std::string gate;  // <gate>.weight [1, hidden]: sigmoid(gate · x) scales it; empty: none
};

struct MoeConfig {
  RouterConfig router;
  ExpertConfig experts;
  std::optional<SharedExpertConfig> shared;
};

// Experts are dealt whole over the expert axis; each is cut over the ranks of its group by `inter`. The
// shared expert is cut over the mlp axis, over which the result is a sum.
class Moe {
 public:
  Moe(Scope s, int64_t hidden, const MoeConfig& config);
  Partial operator()(Ctx& c, Tensor x) const;

 private:
  struct Shared {
    GatedMlp mlp;
    std::optional<Matrix> gate;
  };

  std::string path_;
  MoeConfig config_;
  Range local_;  // experts of this rank
  bool adds_down_bias_;
  Communicator* axis_;
  Matrix router_;
  Vector router_bias_, correction_;
  std::vector<Matrix> gate_up_, down_;  // per local expert
  std::vector<Vector> gate_up_bias_, down_bias_;
  std::optional<Shared> shared_;
};

// The feed-forward block of a model whose layers are not all sparse.
class MoeOrMlp {
 public:
  // Experts if `moe` is given, else a dense block of width `inter`.
  MoeOrMlp(Scope s, int64_t hidden, const MoeConfig* moe, int64_t inter) {
    if (moe != nullptr) {
      moe_.emplace(s, hidden, *moe);
    } else {
      mlp_.emplace(s, hidden, inter);
    }
  }
  Partial operator()(Ctx& c, Tensor x) const { return moe_ ? (*moe_)(c, x) : (*mlp_)(c, x); }

 private:
  std::optional<Moe> moe_;
  std::optional<GatedMlp> mlp_;
};

}  // namespace atom::nn
