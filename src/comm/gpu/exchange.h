// How kernels of the ranks of one axis exchange numbers: each writes into the others' inboxes and raises a
// flag there. Only device memory and kernel arguments are used, so that calls can be recorded in graphs.
//
// Block b of a rank's kernel talks to the blocks b of the other ranks' and to nobody else; the grid must be
// the same on all ranks. An exchange is: put numbers in the outboxes, swap(), take the others' numbers from
// the inboxes. Each block counts its exchanges in `epochs`, which lasts from kernel to kernel. Inboxes have
// two slots that alternate: who writes exchange k has seen everybody raise the flag of k - 1, which they do
// when they have taken what k - 2 brought, so one meeting per exchange is enough.
//
// A kernel waits on the device for those of other ranks. If one of these runs on the same device, it must be
// able to: grids are small (`blocks`), and the next kernel of the queue, which could fill the device, is let
// in only behind the last meeting. Otherwise it is let in at once.
#pragma once
#include "tensor/gpu/vendor.h"

namespace atom::gpu {

inline constexpr int kMostRanks = 16;                         // of an axis
inline constexpr int kMostExchangeBlocks = 64;                // of a grid
inline constexpr int64_t kExchangeBytes = int64_t{64} << 10;  // of a block's numbers for one rank

// Why a kernel gave up: it waited too long for a peer. In host memory.
struct ExchangeFailure {
  int32_t happened = 0, peer = 0, block = 0;
};

// One rank's place among the others: an argument of kernels.
struct Exchange {
  int rank = 0, size = 1;
  int blocks = 1;              // most of a grid
  bool shares_device = false;  // with another rank
  bool rehearsal = false;      // kernels see no other rank
  uint64_t patience = 0;       // clock cycles; longer than any rank is late
  uint32_t* epochs = nullptr;  // [blocks] of this rank
  ExchangeFailure* failure = nullptr;
  std::byte* inboxes[kMostRanks] = {};  // by rank

  // Layout of an inbox: a flag per block and sender, then the slots [2, blocks, senders].
  static constexpr int64_t kFlagBytes = int64_t{kMostExchangeBlocks} * kMostRanks * 4;
  static int64_t inbox_bytes(int size, int blocks) {
    return kFlagBytes + 2 * int64_t{blocks} * size * kExchangeBytes;
  }
};

#if defined(__CUDACC__) || defined(__HIPCC__)

// An argument that is read where the kernel's arguments are, not copied by every thread.
#if defined(__HIP_PLATFORM_AMD__)
#define GPU_IN_PLACE
#else
#define GPU_IN_PLACE __grid_constant__
#endif

// Everything that this thread wrote or that a barrier showed it is seen by who sees the flag, on any device.
__device__ inline void raise_flag(uint32_t* flag, uint32_t value) {
#if defined(__HIP_PLATFORM_AMD__)
  __hip_atomic_store(flag, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
#else
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
#endif
}
__device__ inline uint32_t see_flag(const uint32_t* flag) {
#if defined(__HIP_PLATFORM_AMD__)
  return __hip_atomic_load(flag, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
#else
  uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
#endif
}

__device__ inline void add_to(float& sum, float value) { sum += value; }
__device__ inline void add_to(float4& sum, float4 value) {
  sum.x += value.x;
  sum.y += value.y;
  sum.z += value.z;
  sum.w += value.w;
}

// A block's side of its exchanges, between wait_for_previous() and the kernel's end. Every thread has one and
// does the same with it.
class Exchanger {
 public:
  __device__ explicit Exchanger(const Exchange& e)
      : e_(e), others_(e.rehearsal ? 0 : e.size - 1), epoch_(e.epochs[blockIdx.x]) {}

  // kExchangeBytes that rank `to` will find in its inbox from this rank.
  template <class T>
  __device__ T* outbox(int to) const {
    return reinterpret_cast<T*>(slot(e_.inboxes[to], epoch_ + 1, e_.rank));
  }
  // What rank `from` put there before the last swap. Read it with load_fresh.
  template <class T>
  __device__ const T* inbox(int from) const {
    return reinterpret_cast<const T*>(slot(e_.inboxes[e_.rank], epoch_, from));
  }

  // The other ranks are peer(1) up to peer(others()); not everybody begins with the same.
  __device__ int others() const { return others_; }
  __device__ int peer(int i) const { return (e_.rank + i) % e_.size; }
  // The sum over the ranks, in their order, of `own` here and of vector i of the inboxes.
  template <class V>
  __device__ V sum_with(V own, int i) const {
    if (others_ == 0) return own;
    V sum = e_.rank == 0 ? own : load_fresh(inbox<V>(0) + i);
    for (int r = 1; r < e_.size; ++r) add_to(sum, r == e_.rank ? own : load_fresh(inbox<V>(r) + i));
    return sum;
  }

  __device__ void swap() {
    ++epoch_;
    __syncthreads();  // all have put, and taken what the exchange before brought
    if (static_cast<int>(threadIdx.x) < others_) {
      const int peer = this->peer(static_cast<int>(threadIdx.x) + 1);
      raise_flag(flag(e_.inboxes[peer], e_.rank), epoch_);
      const uint32_t* expected = flag(e_.inboxes[e_.rank], peer);
      const auto begin = static_cast<uint64_t>(clock64());
      while (static_cast<int32_t>(see_flag(expected) - epoch_) < 0) {  // a peer may be one ahead
        if (static_cast<uint64_t>(clock64()) - begin > e_.patience) give_up(peer);
      }
    }
    __syncthreads();
  }

  // At the kernel's end.
  __device__ void finish() const {
    if (threadIdx.x == 0 && others_ > 0) e_.epochs[blockIdx.x] = epoch_;
  }

 private:
  __device__ uint32_t* flag(std::byte* inbox, int sender) const {
    return reinterpret_cast<uint32_t*>(inbox) + blockIdx.x * kMostRanks + sender;
  }
  __device__ std::byte* slot(std::byte* inbox, uint32_t epoch, int sender) const {
    const int64_t place = (int64_t{epoch & 1} * e_.blocks + blockIdx.x) * e_.size + sender;
    return inbox + Exchange::kFlagBytes + place * kExchangeBytes;
  }
  __device__ void give_up(int peer) const {
    e_.failure->peer = peer;
    e_.failure->block = static_cast<int32_t>(blockIdx.x);
    e_.failure->happened = 1;
    __threadfence_system();
#if defined(__HIP_PLATFORM_AMD__)
    __builtin_trap();
#else
    __trap();
#endif
  }

  const Exchange& e_;
  const int others_;
  uint32_t epoch_;
};

#endif

}  // namespace atom::gpu
