// Experts by gathered tokens. Bound: the bytes of the distinct chosen experts for few tokens, arithmetic for
// many. Work goes in batches of experts, so that few tokens cost three starts of the thread team and many
// need bounded memory.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "ops/cpu/linear_rows.h"
#include "ops/cpu/moe_cpu.h"

namespace atom::ops {
namespace {

constexpr int64_t kBatchRows = 512;  // gathered rows of a batch, unless one expert has more

// One use of an expert by a token.
struct Use {
  int32_t token;
  float weight;
};

// The uses of this rank's experts: those of expert e are uses[begin[e], begin[e + 1]), by token.
struct Uses {
  std::vector<int64_t> begin, next;
  std::vector<Use> list;

  void sort(const MoeExperts& op) {
    const int64_t experts = static_cast<int64_t>(op.down.size());
    begin.assign(static_cast<size_t>(experts) + 1, 0);
    each(op, [&](int64_t expert, const Use&) { ++begin[expert + 1]; });
    for (int64_t e = 0; e < experts; ++e) begin[e + 1] += begin[e];
    list.resize(static_cast<size_t>(begin.back()));
    next.assign(begin.begin(), begin.end());
    each(op, [&](int64_t expert, const Use& use) { list[next[expert]++] = use; });
  }

 private:
  template <class Fn>
  static void each(const MoeExperts& op, const Fn& fn) {
    for (int64_t t = 0; t < op.ids.dim(0); ++t) {
      const int32_t* ids = op.ids.row<int32_t>(t);
      for (int64_t n = 0; n < op.ids.dim(1); ++n) {
        const int64_t e = ids[n] - op.first_expert;
        if (e < 0 || e >= static_cast<int64_t>(op.down.size())) continue;
        fn(e, Use{static_cast<int32_t>(t), op.weights.row<float>(t)[n]});
      }
    }
  }
};

// out[t, i] from gate and up in both[t]; rows of `both` are 2 * inter wide.
void clamped_swiglu(Stream& stream, const MoeExperts& op, const Tensor& both, const Tensor& out) {
  const int64_t inter = out.dim(1);
  stream.pool().parallel_for(out.dim(0), 4, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* gate = both.row<float>(t);
      const float* up = gate + inter;
      float* y = out.row<float>(t);
      for (int64_t i = 0; i < inter; ++i) {
        const float g = std::min(gate[i], op.limit);
        const float u = std::clamp(up[i], -op.limit, op.limit);
        y[i] = g / (1 + std::exp(-op.alpha * g)) * (u + 1);
      }
    }
  });
}

Tensor bias_of(std::span<const Tensor> biases, int64_t expert) {
  return biases.empty() ? Tensor{} : biases[expert];
}

class Batch {
 public:
  Batch(Stream& stream, const MoeExperts& op, const Uses& uses) : stream_(stream), op_(op), uses_(uses) {}

  // The experts [first, end), whose uses are [begin, begin + rows).
  void run(int64_t first, int64_t end) {
    const int64_t begin = uses_.begin[first], rows = uses_.begin[end] - begin;
    const int64_t hidden = op_.x.dim(1), inter = op_.down[first].cols;
    const bool gated = op_.activation == ExpertActivation::silu;
    const int64_t both_cols = gated ? 0 : 2 * inter;
    auto* memory =
        reinterpret_cast<float*>(thread_scratch(kExpertScratch, rows * (2 * hidden + inter + both_cols) * 4));
    const Tensor x = make_tensor(memory, DType::f32, {rows, hidden});
    const Tensor y = make_tensor(memory + rows * hidden, DType::f32, {rows, hidden});
    const Tensor h = make_tensor(memory + 2 * rows * hidden, DType::f32, {rows, inter});
    const Tensor both = make_tensor(memory + rows * (2 * hidden + inter), DType::f32, {rows, both_cols});
    const Use* use = uses_.list.data() + begin;

    stream_.pool().parallel_for(rows, 32, [&](int64_t from, int64_t to) {
      for (int64_t r = from; r < to; ++r) {
        std::memcpy(x.row<float>(r), op_.x.row<float>(use[r].token), static_cast<size_t>(hidden) * 4);
      }
    });
    if (gated) {
      thread_local std::vector<GatedUp> products;
      products.clear();
      each_expert(first, end, [&](int64_t e, int64_t row, int64_t n) {
        products.push_back({h.rows(row, n), x.rows(row, n), op_.gate_up[e], bias_of(op_.gate_up_bias, e),
                            Activation::silu, op_.precision});
      });
      ops::run(stream_, Group<GatedUp>{products});
    } else {
      linear(first, end, both, x, op_.gate_up, op_.gate_up_bias);
      clamped_swiglu(stream_, op_, both, h);
    }
    linear(first, end, y, h, op_.down, op_.down_bias);
    stream_.pool().parallel_for(hidden, columns_per_job(rows), [&](int64_t from, int64_t to) {
      for (int64_t r = 0; r < rows; ++r) {
        float* out = op_.out.row<float>(use[r].token);
        const float* add = y.row<float>(r);
        for (int64_t i = from; i < to; ++i) out[i] += use[r].weight * add[i];
      }
    });
  }

 private:
  template <class Fn>
  void each_expert(int64_t first, int64_t end, const Fn& fn) const {
    for (int64_t e = first; e < end; ++e) {
      const int64_t n = uses_.begin[e + 1] - uses_.begin[e];
      if (n > 0) fn(e, uses_.begin[e] - uses_.begin[first], n);
    }
  }
  void linear(int64_t first, int64_t end, const Tensor& out, const Tensor& x, std::span<const Weight> w,
              std::span<const Tensor> bias) {
    thread_local std::vector<Linear> products;
    products.clear();
    each_expert(first, end, [&](int64_t e, int64_t row, int64_t n) {
      products.push_back({out.rows(row, n), x.rows(row, n), w[e], bias_of(bias, e), op_.precision});
    });
    ops::run(stream_, Group<Linear>{products});
  }
  // Few rows are added faster than the team starts.
  static int64_t columns_per_job(int64_t rows) { return std::max<int64_t>(256, 65536 / rows); }

  Stream& stream_;
  const MoeExperts& op_;
  const Uses& uses_;
};

}  // namespace

void moe_experts_grouped(Stream& stream, const MoeExperts& op) {
  if (!op.accumulate) {
    for (int64_t t = 0; t < op.out.dim(0); ++t) std::fill_n(op.out.row<float>(t), op.out.dim(1), 0.0f);
  }
  thread_local Uses uses;
  uses.sort(op);
  Batch batch(stream, op, uses);
  const int64_t experts = static_cast<int64_t>(op.down.size());
  for (int64_t first = 0, end; first < experts; first = end) {
    end = first + 1;
    while (end < experts && uses.begin[end + 1] - uses.begin[first] <= kBatchRows) ++end;
    if (uses.begin[end] > uses.begin[first]) batch.run(first, end);
  }
}

}  // namespace atom::ops
