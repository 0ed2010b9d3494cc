// Products of four warps as attention needs them: queries with keys, both in shared memory, and weights in
// registers with values whose rows are keys. Device code only.
#pragma once
#include "ops/cuda/hopper.h"

namespace atom::ops::gpu_kernels {

#if ATOM_HOPPER

// A tile in shared memory, swizzled as the copy engine leaves it: 8 rows of 128 bytes, the next 8 rows behind
// them. `across`: bytes to the next 128 bytes of the same rows, where a product takes more of them.
__device__ inline uint64_t swizzled_operand(uint32_t address, int across = 16) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | static_cast<uint64_t>(across >> 4) << 16 |
         uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

#define ATOM_SUMS_4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define ATOM_SUMS_16(i) ATOM_SUMS_4(i), ATOM_SUMS_4(i + 4), ATOM_SUMS_4(i + 8), ATOM_SUMS_4(i + 12)
#define ATOM_SUMS_32(i) ATOM_SUMS_16(i), ATOM_SUMS_16(i + 16)
#define ATOM_SUMS_64(i) ATOM_SUMS_32(i), ATOM_SUMS_32(i + 32)
#define ATOM_SUMS_128(i) ATOM_SUMS_64(i), ATOM_SUMS_64(i + 64)
#define ATOM_NAMES_32                                      \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define ATOM_NAMES_64                                                \
  ATOM_NAMES_32                                                      \
  ","                                                                \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define ATOM_NAMES_128                                                           \
  ATOM_NAMES_64                                                                  \
  ","                                                                            \
  "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,"             \
  "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,"             \
  "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
  "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// c (+)= a b^T for 64 rows of a and as many of b as c has twice; 16 deep. `add`: c holds a sum.
#define ATOM_SCORES(columns, type, Type, names, sums, a_name, b_name, flag)                              \
  __device__ inline void multiply_rows(float(&c)[columns / 2], uint64_t a, uint64_t b, bool add, Type) { \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " flag                                            \
                 ", 0;\n"                                                                                \
                 "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type " {" names        \
                 "}, " a_name ", " b_name ", add, 1, 1, 0, 0;\n}"                                        \
                 : sums                                                                                  \
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                          \
  }
// c += a b for 64 rows of a, 16 of each warp, in registers, and 16 rows of b, as many columns as c has twice.
#define ATOM_VALUES(columns, type, Type, names, sums, operands)                                              \
  __device__ inline void multiply_columns(float(&c)[columns / 2], const uint32_t(&a)[4], uint64_t b, Type) { \
    asm volatile("{\n.reg .pred add;\nsetp.eq.b32 add, 0, 0;\nwgmma.mma_async.sync.aligned.m64n" #columns    \
                 "k16.f32." type "." type " {" names "}, " operands ", add, 1, 1, 1;\n}"                     \
                 : sums                                                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                      \
  }
#define ATOM_PRODUCTS(type, Type)                                                        \
  ATOM_SCORES(64, type, Type, ATOM_NAMES_32, ATOM_SUMS_32(0), "%32", "%33", "%34")       \
  ATOM_SCORES(128, type, Type, ATOM_NAMES_64, ATOM_SUMS_64(0), "%64", "%65", "%66")      \
  ATOM_VALUES(64, type, Type, ATOM_NAMES_32, ATOM_SUMS_32(0), "{%32,%33,%34,%35}, %36")  \
  ATOM_VALUES(128, type, Type, ATOM_NAMES_64, ATOM_SUMS_64(0), "{%64,%65,%66,%67}, %68") \
  ATOM_VALUES(256, type, Type, ATOM_NAMES_128, ATOM_SUMS_128(0), "{%128,%129,%130,%131}, %132")
ATOM_PRODUCTS("bf16", Bf16)
ATOM_PRODUCTS("f16", F16)
#undef ATOM_PRODUCTS
#undef ATOM_VALUES
#undef ATOM_SCORES
#undef ATOM_NAMES_128
#undef ATOM_NAMES_64
#undef ATOM_NAMES_32
#undef ATOM_SUMS_128
#undef ATOM_SUMS_64
#undef ATOM_SUMS_32
#undef ATOM_SUMS_16
#undef ATOM_SUMS_4

#endif

}  // namespace atom::ops::gpu_kernels
