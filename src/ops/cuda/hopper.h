// What only Hopper has, as the kernels here use it: copies of tiles that complete on barriers, and products
// of four warps together. Device code only.
#pragma once
#include "ops/cuda/mma.h"
#include "ops/cuda/tensor_map.h"

// Whether the code being compiled is for a device that has all this.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ATOM_HOPPER 1
#else
#define ATOM_HOPPER 0
#endif

namespace atom::ops::gpu_kernels {

#if ATOM_HOPPER

// A barrier in shared memory; completes when `count` threads and all bytes that they expect have arrived.
__device__ inline void start_barrier(uint64_t& barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(count));
}
// Barriers started by this thread are seen by the copy engine.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void arrive(uint64_t& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
__device__ inline void arrive_expecting(uint64_t& barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)),
               "r"(bytes)
               : "memory");
}
// Returns when the barrier's phase of this parity has completed.
__device__ inline void await(uint64_t& barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}
// Fetches the tile at byte `col` and row `row` of a matrix to shared memory, aligned to 1024 bytes.
__device__ inline void fetch_tile(uint32_t to, const CUtensorMap& map, int col, int row, int matrix,
                                  uint64_t& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
      "%4}], "
      "[%5];" ::"r"(to),
      "l"(&map), "r"(col), "r"(row), "r"(matrix), "r"(shared_address(&barrier))
      : "memory");
}
// Fetches `bytes` bytes, a multiple of 16 like both addresses, to shared memory.
__device__ inline void fetch_run(uint32_t to, const void* from, int bytes, uint64_t& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}
__device__ inline void fetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

__device__ inline void load_matrices_at(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ inline uint2 load_shared_8(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}
__device__ inline uint32_t load_shared_2(uint32_t address) {
  uint16_t v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address) : "memory");
  return v;
}
__device__ inline uint32_t load_shared_1(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

// The second operand of products: rows of a tile as fetch_tile leaves it, from 16 of its columns on.
__device__ inline uint64_t tile_operand(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | uint64_t{1} << 16 | uint64_t{64} << 32 |
         uint64_t{1} << 62;
}
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Returns when all but the last kPending groups of products are done.
template <int kPending>
__device__ inline void await_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from reading sums before they are there.
template <int n>
__device__ inline void settle(float (&sums)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// c (+)= a b for 64 rows, 16 of each warp, and as many columns as c has twice; 16 deep. `add`: c holds a sum.
// Overloads for 8, 16, 32, 64 and 128 columns, and operands of bf16 and f16.
#define ATOM_SUMS_4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define ATOM_SUMS_8(i) ATOM_SUMS_4(i), ATOM_SUMS_4(i + 4)
#define ATOM_SUMS_16(i) ATOM_SUMS_8(i), ATOM_SUMS_8(i + 8)
#define ATOM_SUMS_32(i) ATOM_SUMS_16(i), ATOM_SUMS_16(i + 16)
#define ATOM_SUMS_64(i) ATOM_SUMS_32(i), ATOM_SUMS_32(i + 32)
#define ATOM_NAMES_4 "%0,%1,%2,%3"
#define ATOM_NAMES_8 ATOM_NAMES_4 ",%4,%5,%6,%7"
#define ATOM_NAMES_16 ATOM_NAMES_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define ATOM_NAMES_32 ATOM_NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define ATOM_NAMES_64                                                                                      \
  ATOM_NAMES_32                                                                                            \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%" \
  "57,"                                                                                                    \
  "%58,%59,%60,%61,%62,%63"
#define ATOM_PRODUCT(columns, type, Type, names, sums, operands, flag)                                      \
  __device__ inline void multiply_tile(float(&c)[columns / 2], const uint32_t(&a)[4], uint64_t b, bool add, \
                                       Type) {                                                              \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " flag                                               \
                 ", 0;\n"                                                                                   \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" names           \
                 "}, " operands ", add, 1, 1, 0;\n}"                                                        \
                 : sums                                                                                     \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));         \
  }
#define ATOM_PRODUCTS(type, Type)                                                               \
  ATOM_PRODUCT(8, type, Type, ATOM_NAMES_4, ATOM_SUMS_4(0), "{%4,%5,%6,%7}, %8", "%9")          \
  ATOM_PRODUCT(16, type, Type, ATOM_NAMES_8, ATOM_SUMS_8(0), "{%8,%9,%10,%11}, %12", "%13")     \
  ATOM_PRODUCT(32, type, Type, ATOM_NAMES_16, ATOM_SUMS_16(0), "{%16,%17,%18,%19}, %20", "%21") \
  ATOM_PRODUCT(64, type, Type, ATOM_NAMES_32, ATOM_SUMS_32(0), "{%32,%33,%34,%35}, %36", "%37") \
  ATOM_PRODUCT(128, type, Type, ATOM_NAMES_64, ATOM_SUMS_64(0), "{%64,%65,%66,%67}, %68", "%69")
ATOM_PRODUCTS("bf16", Bf16)
ATOM_PRODUCTS("f16", F16)
#undef ATOM_PRODUCTS
#undef ATOM_PRODUCT
#undef ATOM_NAMES_64
#undef ATOM_NAMES_32
#undef ATOM_NAMES_16
#undef ATOM_NAMES_8
#undef ATOM_NAMES_4
#undef ATOM_SUMS_64
#undef ATOM_SUMS_32
#undef ATOM_SUMS_16
#undef ATOM_SUMS_8
#undef ATOM_SUMS_4

#endif

}  // namespace atom::ops::gpu_kernels
