// The GGUF block layouts, each taken apart into signed quants with scales and minimums: w = d * q + m.
// Everything is in an unnamed namespace on purpose: each file that includes this compiles its own copy for
// its own instruction set, and no copy can end up in another object file.
#pragma once
#include <cstdint>
#include <cstring>

namespace atom::ops {
namespace {

inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  uint32_t bits = static_cast<uint32_t>(half & 0x7FFF) << 13;
  float value;
  std::memcpy(&value, &bits, 4);
  value *= 0x1p112f;  // moves the exponent's bias, subnormals included
  std::memcpy(&bits, &value, 4);
  if ((half & 0x7C00) == 0x7C00) bits |= 0x7F800000;
  bits |= sign;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline float load_half(const uint8_t* p) {
  uint16_t half;
  std::memcpy(&half, p, 2);
  return half_to_float(half);
}

inline uint32_t load_u32(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}

// Every format: kBlock elements in kBytes bytes; kGroup elements share a scale; kMin: minimums are not all
// zero. unpack writes kBlock quants, kBlock / kGroup scales and, if kMin, as many minimums.

// Sixteen bytes at a time, in the compiler's portable vectors: it does not find them by itself.
using Bytes = uint8_t __attribute__((vector_size(16)));

inline Bytes load_bytes(const uint8_t* p) {
  Bytes bytes;
  std::memcpy(&bytes, p, 16);
  return bytes;
}
inline void store_bytes(int8_t* p, Bytes bytes) { std::memcpy(p, &bytes, 16); }

// Byte i is 16 if bit i is set.
inline Bytes sixteens(uint32_t bits) {
  constexpr uint64_t kOnes = 0x0101010101010101;
  const uint64_t spread[2] = {(bits & 0xFF) * kOnes, (bits >> 8 & 0xFF) * kOnes};
  Bytes bytes;
  std::memcpy(&bytes, spread, 16);
  const Bytes selector = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  return reinterpret_cast<Bytes>((bytes & selector) != 0) & 16;
}

inline void unpack_nibbles(const uint8_t* src, uint8_t offset, int8_t* q) {
  const Bytes bytes = load_bytes(src);
  store_bytes(q, (bytes & 15) - offset);
  store_bytes(q + 16, (bytes >> 4) - offset);
}

inline void unpack_nibbles5(const uint8_t* src, uint32_t fifth, uint8_t offset, int8_t* q) {
  const Bytes bytes = load_bytes(src);
  store_bytes(q, ((bytes & 15) | sixteens(fifth)) - offset);
  store_bytes(q + 16, ((bytes >> 4) | sixteens(fifth >> 16)) - offset);
}

struct Q4_0 {  // d, 16 bytes: element i and i + 16 in byte i
  static constexpr int kBlock = 32, kBytes = 18, kGroup = 32;
  static constexpr bool kMin = false;
  static void unpack(const uint8_t* p, int8_t* q, float* d, float*) {
    *d = load_half(p);
    unpack_nibbles(p + 2, 8, q);
  }
};

struct Q4_1 {  // d, m, nibbles
  static constexpr int kBlock = 32, kBytes = 20, kGroup = 32;
  static constexpr bool kMin = true;
  static void unpack(const uint8_t* p, int8_t* q, float* d, float* m) {
    *d = load_half(p);
    *m = load_half(p + 2);
    unpack_nibbles(p + 4, 0, q);
  }
};

struct Q5_0 {  // d, 32 fifth bits, nibbles
  static constexpr int kBlock = 32, kBytes = 22, kGroup = 32;
  static constexpr bool kMin = false;
  static void unpack(const uint8_t* p, int8_t* q, float* d, float*) {
    *d = load_half(p);
    unpack_nibbles5(p + 6, load_u32(p + 2), 16, q);
  }
};

struct Q5_1 {  // d, m, 32 fifth bits, nibbles
  static constexpr int kBlock = 32, kBytes = 24, kGroup = 32;
  static constexpr bool kMin = true;
  static void unpack(const uint8_t* p, int8_t* q, float* d, float* m) {
    *d = load_half(p);
    *m = load_half(p + 2);
    unpack_nibbles5(p + 8, load_u32(p + 4), 0, q);
  }
};

struct Q8_0 {  // d, 32 signed bytes
  static constexpr int kBlock = 32, kBytes = 34, kGroup = 32;
  static constexpr bool kMin = false;
  static void unpack(const uint8_t* p, int8_t* q, float* d, float*) {
    *d = load_half(p);
    std::memcpy(q, p + 2, 32);
  }
};

// Eight 6-bit scales and eight 6-bit minimums in 12 bytes; each result holds its eight bytes in order.
inline void unpack_scales6(const uint8_t* p, uint64_t* scales, uint64_t* minimums) {
  const uint32_t a = load_u32(p), b = load_u32(p + 4), c = load_u32(p + 8);
  *scales = (a & 0x3F3F3F3F) | static_cast<uint64_t>((c & 0x0F0F0F0F) | (a >> 2 & 0x30303030)) << 32;
  *minimums = (b & 0x3F3F3F3F) | static_cast<uint64_t>((c >> 4 & 0x0F0F0F0F) | (b >> 2 & 0x30303030)) << 32;
}

inline void expand_scales6(const uint8_t* p, float* d, float* m) {
  uint64_t scales, minimums;
  unpack_scales6(p + 4, &scales, &minimums);
  const float scale = load_half(p), minimum = load_half(p + 2);
  for (int i = 0; i < 8; ++i) {
    d[i] = scale * static_cast<float>(scales >> (8 * i) & 0xFF);
    m[i] = -(minimum * static_cast<float>(minimums >> (8 * i) & 0xFF));
  }
}

struct Q4_K {  // d, dmin, scales6, 128 bytes: 64 elements in 32 bytes, low nibbles first
  static constexpr int kBlock = 256, kBytes = 144, kGroup = 32;
  static constexpr bool kMin = true;
  static void unpack(const uint8_t* p, int8_t* q, float* d, float* m) {
    expand_scales6(p, d, m);
    for (int j = 0; j < 4; ++j) {
      for (int i = 0; i < 32; i += 16) {
        const Bytes bytes = load_bytes(p + 16 + 32 * j + i);
        store_bytes(q + 64 * j + i, bytes & 15);
        store_bytes(q + 64 * j + 32 + i, bytes >> 4);
      }
    }
  }
};

struct Q5_K {  // d, dmin, scales6, 32 bytes of fifth bits (bit g of byte i: element i of group g), nibbles
  static constexpr int kBlock = 256, kBytes = 176, kGroup = 32;
  static constexpr bool kMin = true;
  static void unpack(const uint8_t* p, int8_t* q, float* d, float* m) {
    expand_scales6(p, d, m);
    for (int i = 0; i < 32; i += 16) {
      const Bytes fifth = load_bytes(p + 16 + i);
      for (int j = 0; j < 4; ++j) {
        const Bytes bytes = load_bytes(p + 48 + 32 * j + i);
        store_bytes(q + 64 * j + i, (bytes & 15) | ((fifth >> (2 * j) & 1) << 4));
        store_bytes(q + 64 * j + 32 + i, (bytes >> 4) | ((fifth >> (2 * j + 1) & 1) << 4));
      }
    }
  }
};

// 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, d. Each half block of 128 elements
// has 64 and 32 bytes: low nibbles of elements 0..63, then high nibbles of 64..127; element 32 k + i has its
// upper bits at 2 k of byte i.
struct Q6_K {
  static constexpr int kBlock = 256, kBytes = 210, kGroup = 16;
  static constexpr bool kMin = false;
  static void unpack(const uint8_t* p, int8_t* q, float* d, float*) {
    const float scale = load_half(p + 208);
    for (int i = 0; i < 16; ++i) d[i] = scale * static_cast<float>(static_cast<int8_t>(p[192 + i]));
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 32; i += 16) {
        const Bytes first = load_bytes(p + 64 * half + i), second = load_bytes(p + 64 * half + 32 + i);
        const Bytes high = load_bytes(p + 128 + 32 * half + i);
        int8_t* out = q + 128 * half + i;
        store_bytes(out, ((first & 15) | ((high & 3) << 4)) - 32);
        store_bytes(out + 32, ((second & 15) | ((high >> 2 & 3) << 4)) - 32);
        store_bytes(out + 64, ((first >> 4) | ((high >> 4 & 3) << 4)) - 32);
        store_bytes(out + 96, ((second >> 4) | ((high >> 6) << 4)) - 32);
      }
    }
  }
};

template <class Format>
void dequantize_blocks(const uint8_t* src, float* __restrict dst, int64_t n) {
  constexpr int kGroups = Format::kBlock / Format::kGroup;
  for (int64_t at = 0; at < n; at += Format::kBlock, src += Format::kBytes, dst += Format::kBlock) {
    int8_t q[Format::kBlock];
    float d[kGroups], m[kGroups];
    Format::unpack(src, q, d, m);
    for (int g = 0; g < kGroups; ++g) {
      const float scale = d[g], minimum = Format::kMin ? m[g] : 0.0f;
      for (int i = g * Format::kGroup; i < (g + 1) * Format::kGroup; ++i) {
        dst[i] = Format::kMin ? scale * q[i] + minimum : scale * q[i];
      }
    }
  }
}

}  // namespace
}  // namespace atom::ops
