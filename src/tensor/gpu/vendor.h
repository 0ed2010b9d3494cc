// The one place that knows which vendor's runtime and compiler the GPU sources are built with. Everything
// else says GPU(Name) for a runtime function or type, and uses the few device functions here whose spelling
// differs.
#pragma once
#include <array>

#include "base/error.h"
#include "tensor/gpu.h"

#if defined(__HIP_PLATFORM_AMD__)
#include <hip/hip_fp16.h>
#include <hip/hip_runtime.h>
#define GPU(name) hip##name
#else
#include <cuda_fp16.h>
#include <cuda_profiler_api.h>
#include <cuda_runtime.h>
#define GPU(name) cuda##name
#endif

#define GPU_CHECK(call)                                                   \
  do {                                                                    \
    if (const GPU(Error_t) gpu_error = (call); gpu_error != GPU(Success)) \
      ::atom::gpu::throw_error(gpu_error, #call);                         \
  } while (0)

namespace atom::gpu {

[[noreturn]] void throw_error(GPU(Error_t) error, const char* call);

inline GPU(Stream_t) native_stream(Queue& queue) { return static_cast<GPU(Stream_t)>(queue.native()); }

// The compute capability that this build's kernels for the current device are written for; 0: it has none.
int kernel_capability();

}  // namespace atom::gpu

#if defined(__CUDACC__) || defined(__HIPCC__)

namespace atom::gpu {

// Threads that run as one. Host and device must agree on it, so a build is for devices of one width.
#if !defined(__HIP_PLATFORM_AMD__)
inline constexpr int kWarp = 32;
#elif defined(ATOM_HIP_WARP)
inline constexpr int kWarp = ATOM_HIP_WARP;
#else
inline constexpr int kWarp = 64;  // CDNA
#endif
#if defined(__HIP_DEVICE_COMPILE__) && defined(__AMDGCN_WAVEFRONT_SIZE)
static_assert(kWarp == __AMDGCN_WAVEFRONT_SIZE, "define ATOM_HIP_WARP");
#endif

// Memory that lanes of a warp wrote is seen by its other lanes.
__device__ inline void sync_warp() {
#if defined(__HIP_PLATFORM_AMD__)
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
#else
  __syncwarp();
#endif
}

// Memory that another block wrote during this kernel, read after a fence: not from the first cache, which
// AMD's fence has emptied.
template <class T>
__device__ inline T load_fresh(const T* p) {
#if defined(__HIP_PLATFORM_AMD__)
  return *p;
#else
  return __ldcg(p);
#endif
}

// The value of the lane whose number differs in the bits of `mask`.
template <class T>
__device__ inline T shuffle_xor(T value, int mask) {
#if defined(__HIP_PLATFORM_AMD__)
  return __shfl_xor(value, mask);
#else
  return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
#endif
}

// The value of lane `lane`.
template <class T>
__device__ inline T shuffle(T value, int lane) {
#if defined(__HIP_PLATFORM_AMD__)
  return __shfl(value, lane);
#else
  return __shfl_sync(0xFFFFFFFFu, value, lane);
#endif
}

// The largest value of a warp.
__device__ inline uint32_t warp_max_bits(uint32_t value) {
#if !defined(__HIP_PLATFORM_AMD__) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_max_sync(0xFFFFFFFFu, value);
#else
  for (int mask = kWarp / 2; mask > 0; mask /= 2) value = max(value, shuffle_xor(value, mask));
  return value;
#endif
}

// One bit per lane whose `vote` is true.
#if defined(__HIP_PLATFORM_AMD__)
using LaneMask = uint64_t;
__device__ inline LaneMask ballot(bool vote) { return __ballot(vote); }
__device__ inline int count_bits(LaneMask lanes) { return __popcll(lanes); }
#else
using LaneMask = uint32_t;
__device__ inline LaneMask ballot(bool vote) { return __ballot_sync(0xFFFFFFFFu, vote); }
__device__ inline int count_bits(LaneMask lanes) { return __popc(lanes); }
#endif

// The value of the lane `step` below; below lane 0 there is none.
template <class T>
__device__ inline T shuffle_up(T value, int step) {
#if defined(__HIP_PLATFORM_AMD__)
  return __shfl_up(value, step);
#else
  return __shfl_up_sync(0xFFFFFFFFu, value, step);
#endif
}

// 16 bytes that are read once: they should not push others out of the first cache.
__device__ inline uint4 load_once(const uint4* p) {
#if defined(__HIP_PLATFORM_AMD__)
  return *p;
#else
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
#endif
}

// Copies 16 bytes to shared memory, or zeros if not `valid`, while the thread goes on. A group ends with
// end_copies(); await_copies<n>() returns when all but the last n groups of this thread have arrived.
__device__ inline void copy_ahead(void* to, const void* from, bool valid = true) {
#if defined(__HIP_PLATFORM_AMD__)
  *static_cast<uint4*>(to) = valid ? *static_cast<const uint4*>(from) : uint4{};
#else
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from),
               "r"(valid ? 16 : 0));
#endif
}
__device__ inline void end_copies() {
#if !defined(__HIP_PLATFORM_AMD__)
  asm volatile("cp.async.commit_group;");
#endif
}
template <int kPending>
__device__ inline void await_copies() {
#if !defined(__HIP_PLATFORM_AMD__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
#endif
}

// A kernel may be started while those before it still run. Until wait_for_previous(), which returns when all
// of them have ended, it may read only what no kernel of the step writes: weights, the step's lists, and what
// earlier steps have left in caches and states, in places that this kernel alone changes. Every thread calls
// both, let_next_start() first, so that the next kernel is in place, its weights on the way, when this one
// ends; blocks that find nothing to do may leave before. Look at the machine code of loads that shall come
// first: in one straight run of code the assembler moves the wait before them.
__device__ inline void wait_for_previous() {
#if !defined(__HIP_PLATFORM_AMD__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void let_next_start() {
#if !defined(__HIP_PLATFORM_AMD__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

#if !defined(__HIP_PLATFORM_AMD__)
// What every launch asks for on Hopper and later: that it may start early, and that the first cache is shared
// memory. A processor must be empty to change its share of it: blocks of a kernel that wants more of it than
// the kernel before would wait for that one's end, although there is room for both.
inline std::array<cudaLaunchAttribute, 2> launch_attributes() {
  std::array<cudaLaunchAttribute, 2> all = {};
  all[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  all[0].val.programmaticStreamSerializationAllowed = 1;
  all[1].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
  all[1].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
  return all;
}
#endif

// Starts a kernel on the queue; a planning queue starts nothing. `shared` is dynamic shared memory in bytes.
template <class... Parameters, class... Arguments>
void launch(Queue& queue, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared,
            Arguments&&... arguments) {
  if (queue.planning()) return;
  queue.introduce(reinterpret_cast<const void*>(kernel));
#if defined(__HIP_PLATFORM_AMD__)
  hipLaunchKernelGGL(kernel, grid, block, shared, native_stream(queue),
                     static_cast<Parameters>(std::forward<Arguments>(arguments))...);
  GPU_CHECK(hipGetLastError());
#else
  auto attributes = launch_attributes();
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = native_stream(queue);
  config.attrs = attributes.data();
  config.numAttrs = queue.capability() >= 90 ? attributes.size() : 0;
  GPU_CHECK(
      cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(std::forward<Arguments>(arguments))...));
#endif
}

}  // namespace atom::gpu

#endif
