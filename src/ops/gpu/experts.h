// The experts of one layer as kernels see them: alike, at equal distances in device memory.
#pragma once
#include <algorithm>

#include "ops/gpu/stored.h"
#include "ops/moe.h"

namespace atom::ops::gpu_kernels {

// One matrix of every expert: that of expert e lies `data_step` and `scale_step` bytes behind that of e - 1.
struct ExpertMatrix {
  StoredMatrix first;
  int64_t data_step = 0, scale_step = 0;

  __device__ StoredMatrix of(int expert) const {
    StoredMatrix m = first;
    m.data += expert * data_step;
    m.scales += expert * scale_step;
    return m;
  }
};

// One bias of every expert; null: none.
struct ExpertBias {
  const float* first = nullptr;
  int64_t step = 0;  // floats

  __device__ float of(int expert, int row) const { return first == nullptr ? 0 : first[expert * step + row]; }
};

struct Experts {
  ExpertMatrix gate, up, down;
  ExpertBias gate_bias, up_bias, down_bias;
  int count = 0, first_expert = 0;
  int hidden = 0, inter = 0;
  ExpertActivation activation = ExpertActivation::silu;
  float limit = 0, alpha = 0;

  // The expert's number here, or -1: another rank has it.
  __device__ int local(int id) const {
    const int expert = id - first_expert;
    return expert >= 0 && expert < count ? expert : -1;
  }
  __device__ float activate(float g, float u) const {
    if (activation == ExpertActivation::silu) return g / (1 + expf(-g)) * u;
    g = fminf(g, limit);
    u = fminf(fmaxf(u, -limit), limit);
    return g / (1 + expf(-alpha * g)) * (u + 1);
  }
};

// Of an op that `check` accepts on a GPU, with at least one expert.
Experts experts_of(const MoeExperts& op);

// Which token and place a use of an expert is: use `token * k + place`.
struct Routing {
  const int32_t* ids = nullptr;    // [tokens, k], rows `ids_stride` apart
  const float* weights = nullptr;  // the same
  int64_t ids_stride = 0, weights_stride = 0;
  int k = 1;

  Routing() = default;
  explicit Routing(const MoeExperts& op)
      : ids(op.ids.as<int32_t>()),
        weights(op.weights.as<float>()),
        ids_stride(op.ids.strides[0]),
        weights_stride(op.weights.strides[0]),
        k(static_cast<int>(op.ids.dim(1))) {}

  __device__ int id(int use) const { return ids[use / k * ids_stride + use % k]; }
  __device__ float weight(int use) const { return weights[use / k * weights_stride + use % k]; }
};

// Why a kernel cannot take the experts' matrices, by `refuse(part)` and because parts must be stored alike;
// null: it can.
template <class Refuse>
const char* refuse_matrices(const MoeExperts& op, const Refuse& refuse) {
  for (const auto experts : {op.gate_up, op.down}) {
    for (const size_t e : {size_t{0}, experts.size() > 1 ? size_t{1} : 0}) {  // those after lie like these
      for (const WeightPart& part : experts[e].parts) {
        if (const char* reason = refuse(part)) return reason;
        if (part.data.dtype != experts[0].parts[0].data.dtype) return "gate and up are stored differently";
      }
    }
  }
  return nullptr;
}

// Calls fn(op for some tokens) until all have been taken, at most `most` tokens, but at least one, at a time.
template <class Fn>
void in_passes(const MoeExperts& op, int64_t most, const Fn& fn) {
  const int64_t tokens = op.x.dim(0), pass = std::clamp<int64_t>(most, 1, tokens);
  for (int64_t begin = 0; begin < tokens; begin += pass) {
    const int64_t count = std::min(pass, tokens - begin);
    MoeExperts part = op;
    part.out = op.out.rows(begin, count);
    part.x = op.x.rows(begin, count);
    part.ids = op.ids.rows(begin, count);
    part.weights = op.weights.rows(begin, count);
    fn(part);
  }
}

}  // namespace atom::ops::gpu_kernels
