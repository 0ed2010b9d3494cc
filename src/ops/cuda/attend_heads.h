// The new token's heads in the kernel of decode attention: norm, rope and what is stored of them. Device code
// only.
#pragma once
#include "ops/cuda/attend_block.h"

namespace atom::ops::gpu_kernels {
namespace {

// The heads that a block needs of its row's qkv: its queries, and with `stores` the new key and value. A warp
// prepares every fourth.
template <class T, int kDim, class P>
class NewHeads {
 public:
  // Before the kernels of this step have ended: weights.
  __device__ NewHeads(const DecodeArguments& a, int kv_head, int head0, int group, bool stores,
                      unsigned char* memory)
      : a_(a),
        kv_head_(kv_head),
        head0_(head0),
        group_(group),
        count_(stores ? group + 2 : group),
        heads_(reinterpret_cast<float*>(memory + P::kHeadsAt)),
        fresh_(reinterpret_cast<T*>(memory + P::kNewAt)) {
    if (a.q_norm == nullptr) return;
#pragma unroll
    for (int j = 0; j < kLanes; ++j) {
      q_weights_[j] = a.weight_offset + a.q_norm[lane() + 32 * j];
      k_weights_[j] = a.weight_offset + a.k_norm[lane() + 32 * j];
    }
  }

  // After wait_for_previous(). Key and value go to `k` and `v`, their slots, if these are not null.
  __device__ void make(int64_t token, T* k, T* v) {
    float x[kEach][kLanes] = {}, cos[kAngles], sin[kAngles];
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const int head = warp() + r * kWarps;
      if (head >= count_) continue;
      const int place =
          head < group_ ? head0_ + head : a_.heads + (head == group_ ? 0 : a_.kv_heads) + kv_head_;
      const float* from = a_.qkv + token * a_.qkv_stride + int64_t{place} * kDim;
#pragma unroll
      for (int j = 0; j < kLanes; ++j) x[r][j] = from[lane() + 32 * j];
    }
    const int half = a_.cos == nullptr ? 0 : a_.rotary_dim / 2;
#pragma unroll
    for (int j = 0; j < kAngles; ++j) {
      const int i = lane() + 32 * j;
      if (i >= half) continue;
      cos[j] = a_.cos[token * a_.cos_stride + i];
      sin[j] = a_.sin[token * a_.sin_stride + i];
    }
    if (a_.q_norm != nullptr) {
      float squares[kEach] = {};
#pragma unroll
      for (int r = 0; r < kEach; ++r) {
#pragma unroll
        for (int j = 0; j < kLanes; ++j) squares[r] += x[r][j] * x[r][j];
      }
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) {
#pragma unroll
        for (int r = 0; r < kEach; ++r) squares[r] += shuffle_xor(squares[r], mask);
      }
#pragma unroll
      for (int r = 0; r < kEach; ++r) {
        const int head = warp() + r * kWarps;
        if (head > group_) continue;
        const float scale = rsqrtf(squares[r] / kDim + a_.eps);
#pragma unroll
        for (int j = 0; j < kLanes; ++j) x[r][j] *= scale * (head < group_ ? q_weights_[j] : k_weights_[j]);
      }
    }
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const int head = warp() + r * kWarps;
      if (head >= count_) continue;
#pragma unroll
      for (int j = 0; j < kLanes; ++j) row(head)[lane() + 32 * j] = x[r][j];
    }
    sync_warp();
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const int head = warp() + r * kWarps;
      if (head > group_ || head >= count_) continue;
      float* y = row(head);
#pragma unroll
      for (int j = 0; j < kAngles; ++j) {
        const int i = lane() + 32 * j;
        if (i >= half) continue;
        float& first = y[a_.interleaved ? 2 * i : i];
        float& second = y[a_.interleaved ? 2 * i + 1 : i + half];
        const float p = first, q = second;
        first = p * cos[j] - q * sin[j];
        second = q * cos[j] + p * sin[j];
      }
    }
    sync_warp();
#pragma unroll
    for (int r = 0; r < kEach; ++r) {
      const int head = warp() + r * kWarps;
      if (head < group_ || head >= count_) continue;
      T* slot = head == group_ ? k : v;
      T* kept = fresh_ + (head == group_ ? 0 : kDim);
      const float factor = head == group_ ? a_.per_k : a_.per_v;
#pragma unroll
      for (int j = 0; j < kLanes; ++j) {
        const int d = lane() + 32 * j;
        T stored;
        narrow(row(head)[d] * factor, stored);
        kept[d] = stored;
        if (slot != nullptr) slot[d] = stored;
      }
    }
  }

 private:
  static constexpr int kLanes = kDim / 32, kAngles = (kDim / 2 + 31) / 32;
  static constexpr int kEach = (kHeads + 2 + kWarps - 1) / kWarps;
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int warp() { return threadIdx.x / 32; }
  __device__ float* row(int head) const {
    return heads_ + (head < group_ ? head : kHeads + head - group_) * P::kHeadFloats;
  }

  const DecodeArguments& a_;
  const int kv_head_, head0_, group_, count_;
  float* const heads_;
  T* const fresh_;
  float q_weights_[kLanes], k_weights_[kLanes];
};

}  // namespace
}  // namespace atom::ops::gpu_kernels
