#include "nn/moe.h"

#include "base/error.h"

namespace atom::nn {
namespace {

// Experts need not divide evenly among groups of ranks, nor an expert's width among the ranks of a group, but
// every rank must have some.
Range part_of(const Scope& s, int64_t full, Axis axis, const char* what) {
  Shard shard = Shard::by_rows(axis);
  shard.ragged = true;
  if (const int size = s.axis(axis).size(); full < size) {
    throw invalid("{}: {} {} cannot be shared by {} ranks; use fewer", s.join("experts"), full, what, size);
  }
  return s.local(full, shard, s.join("experts"));
}

Shard cut(int dim) { return {dim, Axis::expert_mlp, 1, true}; }

// Where the matrices of one expert are stored.
class ExpertSources {
 public:
  ExpertSources(Scope experts, int64_t hidden, const MoeConfig& config)
      : experts_(std::move(experts)),
        hidden_(hidden),
        count_(config.router.experts),
        config_(config.experts),
        turned_(config.experts.fused == FusedLayout::in_out_interleaved) {}

  std::vector<Piece> gate_up(int64_t expert) const {
    const int64_t inter = config_.inter;
    return {{{each(expert, config_.gate), stacked(expert, false)}, inter, hidden_, cut(0)},
            {{each(expert, config_.up), stacked(expert, true)}, inter, hidden_, cut(0)}};
  }
  std::vector<Piece> down(int64_t expert) const {
    Source all{experts_.join("down_proj"), expert};
    all.slices = count_;
    all.transposed = turned_;
    return {{{each(expert, config_.down), all}, hidden_, config_.inter, cut(1)}};
  }
  std::vector<Piece> gate_up_bias(int64_t expert) const {
    std::vector<Piece> pieces;
    for (const bool up : {false, true}) {
      Source source = stacked(expert, up);
      source.name = experts_.join("gate_up_proj_bias");
      source.transposed = false;
      pieces.push_back({{source}, config_.inter, 1, cut(0)});
    }
    return pieces;
  }
  std::vector<Piece> down_bias(int64_t expert) const {
    Source source{experts_.join("down_proj_bias"), expert};
    source.slices = count_;
    return {{{source}, hidden_, 1, {}}};
  }

 private:
  Source each(int64_t expert, const std::string& name) const {
    return {(experts_ / expert / name).join("weight")};
  }
  Source stacked(int64_t expert, bool up) const {
    Source source{experts_.join("gate_up_proj"), expert};
    source.slices = count_;
    source.stored_rows = 2 * config_.inter;
    source.transposed = turned_;
    source.step = turned_ ? 2 : 1;
    if (up) source.begin = turned_ ? 1 : config_.inter;
    return source;
  }

  Scope experts_;
  int64_t hidden_, count_;
  const ExpertConfig& config_;
  bool turned_;
};

// Handles as the op wants them, in memory of this thread that stays valid until its next forward.
std::span<const ops::Weight> weights_of(const std::vector<Matrix>& handles, std::vector<ops::Weight>& list) {
  list.assign(handles.begin(), handles.end());
  return list;
}
std::span<const Tensor> values_of(const std::vector<Vector>& handles, std::vector<Tensor>& list) {
  list.assign(handles.begin(), handles.end());
  return list;
}

void check_router(const Scope& s, const RouterConfig& r) {
  const std::string place = s.join(r.name);
  if (r.top_k < 1 || r.top_k > r.experts) throw invalid("{}: {} of {} experts", place, r.top_k, r.experts);
  if (r.groups == 1 && r.top_groups == 1) return;
  if (r.groups < 1 || r.top_groups < 1 || r.top_groups > r.groups || r.experts % r.groups != 0) {
    throw invalid("{}: {} of {} groups of {} experts", place, r.top_groups, r.groups, r.experts);
  }
  const int64_t per_group = r.experts / r.groups;
  if (per_group < 2 || r.top_groups * per_group < r.top_k) {
    throw invalid("{}: {} groups of {} experts are too small to choose {} experts from {} of them", place,
                  r.groups, per_group, r.top_k, r.top_groups);
  }
}

}  // namespace

Moe::Moe(Scope s, int64_t hidden, const MoeConfig& config)
    : path_(s.path()), config_(config), axis_(&s.axis(Axis::mlp)) {
  const RouterConfig& r = config_.router;
  s.needs<ops::MoeExperts>("a mixture of experts");
  check_router(s, r);
  local_ = part_of(s, r.experts, Axis::expert, "experts");
  part_of(s, config_.experts.inter, Axis::expert_mlp, "columns");
  adds_down_bias_ = s.axis(Axis::expert_mlp).rank() == 0;

  const Scope router = s / r.name;
  router_ = router.matrix("weight", {Piece{{{router.join("weight")}}, r.experts, hidden, {}}});
  if (r.bias) router_bias_ = router.vector("bias", r.experts);
  if (!r.correction.empty()) correction_ = s.vector(r.correction, r.experts);

  const Scope experts = s / "experts";
  const ExpertSources sources(experts, hidden, config_);
  for (int64_t e = local_.begin; e < local_.begin + local_.count; ++e) {
    const Scope expert = experts / e;
    gate_up_.push_back(expert.matrix("gate|up.weight", sources.gate_up(e)));
    down_.push_back(expert.matrix("down.weight", sources.down(e)));
    gate_up_.back().mark_routed(r.top_k, r.experts);
    down_.back().mark_routed(r.top_k, r.experts);
    if (!config_.experts.bias) continue;
    gate_up_bias_.push_back(expert.vector("gate|up.bias", sources.gate_up_bias(e)));
    down_bias_.push_back(expert.vector("down.bias", sources.down_bias(e)));
  }
  if (!config_.shared) return;
  shared_.emplace(Shared{GatedMlp(s / config_.shared->name, hidden, config_.shared->inter), {}});
  if (config_.shared->gate.empty()) return;
  const Scope gate = s / config_.shared->gate;
  shared_->gate = gate.matrix("weight", {Piece{{{gate.join("weight")}}, 1, hidden, {}}});
}

Partial Moe::operator()(Ctx& c, Tensor x) const {
  const RouterConfig& r = config_.router;
  const int64_t tokens = x.dim(0);
  // Routing is exact at every precision: a rounded logit may choose another expert.
  Tensor logits = c.alloc(tokens, r.experts);
  Tensor ids = c.arena.alloc(DType::i32, {tokens, r.top_k});
  Tensor weights = c.alloc(tokens, r.top_k);
  ops::MoeBlock block{.route = {.logits = {logits, x, router_, router_bias_, ops::Precision::exact},
                                .route = {.ids = ids,
                                          .weights = weights,
                                          .logits = logits,
                                          .correction = correction_,
                                          .score = r.score,
                                          .groups = static_cast<int32_t>(r.groups),
                                          .top_groups = static_cast<int32_t>(r.top_groups),
                                          .renormalize = r.renormalize,
                                          .scale = r.scale}}};
  Tensor y;
  if (shared_) {
    if (shared_->gate) block.route.also = {c.alloc(tokens, 1), x, *shared_->gate, {}, c.precision};
    block.shared_up = shared_->mlp.up_op(c, x);
    block.shared_down = shared_->mlp.down_op(c, block.shared_up.out);
    y = block.shared_down.out;
  } else {
    y = c.alloc(tokens, x.dim(1));
  }

  thread_local std::vector<ops::Weight> gate_up, down;
  thread_local std::vector<Tensor> gate_up_bias, down_bias;
  ops::MoeExperts& op = block.experts;
  op = {.out = y, .x = x, .ids = ids, .weights = weights};
  op.gate_up = weights_of(gate_up_, gate_up);
  op.down = weights_of(down_, down);
  op.gate_up_bias = values_of(gate_up_bias_, gate_up_bias);
  if (adds_down_bias_) op.down_bias = values_of(down_bias_, down_bias);
  op.first_expert = local_.begin;
  op.activation = config_.experts.activation;
  op.limit = config_.experts.limit;
  op.alpha = config_.experts.alpha;
  op.accumulate = shared_.has_value();
  op.precision = c.precision;
  ops::run(c.stream, block);
  c.observe(Observer::Choice::experts, path_, ids);
  return Partial(y, *axis_);
}

}  // namespace atom::nn
