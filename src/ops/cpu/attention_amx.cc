// Paged attention over caches of bf16, and of E4M3 widened to it tile by tile, in AMX: both products on tiles
// of bf16 with float32 sums, the softmax in float32. Query vectors are taken 32 at a time, keys
// kAttentionTile at a time.
//   scores [32 q, 64 keys] = Q [32, dims] · Kᵀ    K is transposed by pairs of dims into tiles once per key
//   tile out    [32 q, dims]    = P [32, 64] · V       V is interleaved by pairs of keys, likewise
// A tile is 16 rows of 64 bytes: 16 x 32 bf16 on the left, 16 pairs x 16 on the right, 16 x 16 float32 as
// sum.
#if defined(__x86_64__)
#include "ops/cpu/simd_avx512.h"
// The shared part needs Simd.
#include "ops/cpu/attention_softmax.h"

namespace {

constexpr int32_t kBlock = 32;       // query vectors at a time
constexpr int32_t kTileWords = 512;  // 16-bit words of one tile
constexpr int32_t kFewVectors = 16;  // below this the tiles would be mostly empty

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Lanes of the dims [d, d + 32) that exist.
inline __mmask32 dims_mask(int64_t d, int64_t head_dim) {
  return d + 32 <= head_dim ? ~0u : (1u << (head_dim - d)) - 1;
}

// 16 rows of 16 double words (the dims under `mask`) into 16 columns.
void transpose(const Bf16* const* rows, int64_t d, __mmask32 mask, uint16_t* out) {
  __m512i b[16];  // b[4i + c]: in each 128 bits, column 4 lane + c of rows 4i .. 4i + 3
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i r0 = _mm512_maskz_loadu_epi16(mask, rows[4 * i] + d);
    const __m512i r1 = _mm512_maskz_loadu_epi16(mask, rows[4 * i + 1] + d);
    const __m512i r2 = _mm512_maskz_loadu_epi16(mask, rows[4 * i + 2] + d);
    const __m512i r3 = _mm512_maskz_loadu_epi16(mask, rows[4 * i + 3] + d);
    const __m512i low01 = _mm512_unpacklo_epi32(r0, r1), high01 = _mm512_unpackhi_epi32(r0, r1);
    const __m512i low23 = _mm512_unpacklo_epi32(r2, r3), high23 = _mm512_unpackhi_epi32(r2, r3);
    b[4 * i] = _mm512_unpacklo_epi64(low01, low23);
    b[4 * i + 1] = _mm512_unpackhi_epi64(low01, low23);
    b[4 * i + 2] = _mm512_unpacklo_epi64(high01, high23);
    b[4 * i + 3] = _mm512_unpackhi_epi64(high01, high23);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i even_low = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xDD);
    const __m512i even_high = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xDD);
    _mm512_store_si512(out + c * 32, _mm512_shuffle_i32x4(even_low, even_high, 0x88));
    _mm512_store_si512(out + (4 + c) * 32, _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
    _mm512_store_si512(out + (8 + c) * 32, _mm512_shuffle_i32x4(even_low, even_high, 0xDD));
    _mm512_store_si512(out + (12 + c) * 32, _mm512_shuffle_i32x4(odd_low, odd_high, 0xDD));
  }
}

// Right-hand tiles [keys / 16][dims / 32]: row p holds dims (2p, 2p + 1) of 16 keys.
void pack_keys(const Tile<Bf16>& tile, int32_t keys, int64_t head_dim, int64_t stride, uint16_t* out) {
  for (int32_t t = 0; t < keys; t += 16) {
    for (int64_t d = 0; d < stride; d += 32, out += kTileWords) {
      transpose(tile.k + t, d, dims_mask(d, head_dim), out);
    }
  }
}

// Right-hand tiles [keys / 32][dims / 16]: row p holds keys (2p, 2p + 1) at 16 dims.
void pack_values(const Tile<Bf16>& tile, int32_t keys, int64_t head_dim, int64_t stride, uint16_t* out) {
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  for (int32_t t = 0; t < keys; t += 2) {
    uint16_t* to = out + t / 32 * (stride / 16) * kTileWords + t % 32 / 2 * 32;
    for (int64_t d = 0; d < stride; d += 32, to += 2 * kTileWords) {
      const __mmask32 mask = dims_mask(d, head_dim);
      const __m512i a = _mm512_maskz_loadu_epi16(mask, tile.v[t] + d);
      const __m512i b = _mm512_maskz_loadu_epi16(mask, tile.v[t + 1] + d);
      const __m512i low = _mm512_unpacklo_epi16(a, b), high = _mm512_unpackhi_epi16(a, b);
      _mm512_store_si512(to, _mm512_permutex2var_epi64(low, first, high));
      _mm512_store_si512(to + kTileWords, _mm512_permutex2var_epi64(low, second, high));
    }
  }
}

// Query vectors as bf16 [vectors up to whole blocks, stride], zeros where there is none.
void pack_queries(const AttentionJob& job, int64_t stride, uint16_t* out) {
  const int32_t vectors = job.vectors(), padded = (vectors + kBlock - 1) / kBlock * kBlock;
  __builtin_memset(out, 0, padded * stride * sizeof(uint16_t));
  for (int32_t v = 0; v < vectors; ++v) {
    const float* from = job.query(v);
    for (int64_t d = 0; d < job.head_dim; d += kLanes) {
      const int64_t count = job.head_dim - d < kLanes ? job.head_dim - d : kLanes;
      Simd::store_bf16(out + v * stride + d, Simd::load_n(from + d, count));
    }
  }
}

// scores [32, kAttentionTile] against the first `keys` (a multiple of 32) keys.
void score_tiles(const uint16_t* q, const uint16_t* k, int32_t keys, int64_t stride, float* scores) {
  const int64_t steps = stride / 32, q_bytes = stride * 2, score_bytes = kAttentionTile * sizeof(float);
  for (int32_t t = 0; t < keys; t += 32) {
    const uint16_t* left = k + t / 16 * steps * kTileWords;
    const uint16_t* right = left + steps * kTileWords;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t i = 0; i < steps; ++i) {
      _tile_loadd(4, q + i * 32, q_bytes);
      _tile_loadd(5, q + 16 * stride + i * 32, q_bytes);
      _tile_loadd(6, left + i * kTileWords, 64);
      _tile_loadd(7, right + i * kTileWords, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, scores + t, score_bytes);
    _tile_stored(1, scores + t + 16, score_bytes);
    _tile_stored(2, scores + 16 * kAttentionTile + t, score_bytes);
    _tile_stored(3, scores + 16 * kAttentionTile + t + 16, score_bytes);
  }
}

// acc[r] = acc[r] * factors[r] + p[r] · V for the first `count` rows. The products go to sums [32, stride]
// first: reading a tile right after it was stored would wait for it.
void value_tiles(const uint16_t* p, const uint16_t* v, int32_t keys, int64_t stride, const float* factors,
                 int32_t count, float* acc, float* sums) {
  const int64_t columns = stride / 16, sum_bytes = stride * static_cast<int64_t>(sizeof(float));
  for (int64_t c = 0; c < columns; c += 2) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int32_t t = 0; t < keys; t += 32) {
      const uint16_t* right = v + (t / 32 * columns + c) * kTileWords;
      _tile_loadd(4, p + t, kAttentionTile * 2);
      _tile_loadd(5, p + 16 * kAttentionTile + t, kAttentionTile * 2);
      _tile_loadd(6, right, 64);
      _tile_loadd(7, right + kTileWords, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums + c * 16, sum_bytes);
    _tile_stored(1, sums + c * 16 + 16, sum_bytes);
    _tile_stored(2, sums + 16 * stride + c * 16, sum_bytes);
    _tile_stored(3, sums + 16 * stride + c * 16 + 16, sum_bytes);
  }
  for (int32_t r = 0; r < count; ++r) {
    const Reg factor = Simd::set1(factors[r]);
    for (int64_t d = r * stride; d < (r + 1) * stride; d += kLanes) {
      Simd::store(acc + d, Simd::fma(factor, Simd::load(acc + d), Simd::load(sums + d)));
    }
  }
}

struct Scratch {
  uint16_t* q;
  uint16_t* k;
  uint16_t* v;
  float* scores;  // [32, kAttentionTile]
  uint16_t* p;    // the same, as bf16
  float* sums;    // [32, stride]
  Bf16* wide;     // [k and v, kAttentionTile, stride]: of a tile that is stored as E4M3
};

// Query vectors [first, first + kBlock) against one packed tile of keys.
void attend_block(const AttentionJob& job, int32_t first, const Tile<Bf16>& tile, int64_t stride,
                  const Scratch& s) {
  const int32_t left = job.vectors() - first, count = left < kBlock ? left : kBlock;
  const int64_t top = job.first_position + first / job.group;
  const int64_t bottom = job.first_position + (first + count - 1) / job.group;
  const int32_t n = visible(job, bottom, tile.first, tile.n).hi;
  if (n <= visible(job, top, tile.first, tile.n).lo) return;
  const int32_t keys = (n + 31) / 32 * 32;
  score_tiles(s.q + first * stride, s.k, keys, stride, s.scores);
  alignas(64) float factors[kBlock];
  softmax_rows(job, first, count, tile.first, n, keys, s.scores, factors,
               [&s](int32_t r, int32_t t, Reg weights) {
                 const __m256bh p = _mm512_cvtneps_pbh(weights);
                 __builtin_memcpy(s.p + r * kAttentionTile + t, &p, sizeof(p));
               });
  value_tiles(s.p, s.v, keys, stride, factors, count, job.acc + first * stride, s.sums);
}

// The tile as bf16, which holds every value of E4M3.
void as_bf16(const Tile<F8>& from, int64_t head_dim, int64_t stride, Bf16* memory, Tile<Bf16>& to) {
  to.first = from.first;
  to.n = from.n;
  for (int32_t t = 0; t < kAttentionTile; ++t) {
    const int32_t row = t < from.n ? t : from.n - 1;
    Bf16* k = memory + row * stride;
    Bf16* v = memory + (kAttentionTile + row) * stride;
    to.k[t] = k;
    to.v[t] = v;
    if (t != row) continue;
    for (int64_t d = 0; d < head_dim; d += kLanes) {
      const int64_t count = head_dim - d < kLanes ? head_dim - d : kLanes;
      F8 lanes[2][kLanes] = {};
      __builtin_memcpy(lanes[0], from.k[t] + d, count);
      __builtin_memcpy(lanes[1], from.v[t] + d, count);
      Simd::store_bf16(&k[d].bits, load_kv(lanes[0]));
      Simd::store_bf16(&v[d].bits, load_kv(lanes[1]));
    }
  }
}

template <class T>
void attend_tiles(const AttentionJob& job, int64_t stride, const Scratch& s) {
  Tile<T> tile;
  Tile<Bf16> widened;
  for (locate(job, job.begin, tile); tile.n > 0; locate(job, tile.first + kAttentionTile, tile)) {
    const Tile<Bf16>* as_stored;
    if constexpr (sizeof(T) == 1) {
      as_bf16(tile, job.head_dim, stride, s.wide, widened);
      as_stored = &widened;
    } else {
      as_stored = &tile;
    }
    const int32_t keys = (tile.n + 31) / 32 * 32;
    pack_keys(*as_stored, keys, job.head_dim, stride, s.k);
    pack_values(*as_stored, keys, job.head_dim, stride, s.v);
    for (int32_t v = 0; v < job.vectors(); v += kBlock) attend_block(job, v, *as_stored, stride, s);
  }
}

}  // namespace

namespace atom::ops::cpu {

void attend_amx(const AttentionJob& job) {
  const int32_t vectors = job.vectors();
  if (vectors < kFewVectors) return attend_avx512(job);
  const int64_t stride = attention_stride(job.head_dim);
  const int64_t q_words = (vectors + kBlock - 1) / kBlock * kBlock * stride;
  Scratch s;
  s.q = reinterpret_cast<uint16_t*>(job.scratch);
  s.k = s.q + q_words;
  s.v = s.k + kAttentionTile * stride;
  s.scores = reinterpret_cast<float*>(s.v + kAttentionTile * stride);
  s.sums = s.scores + kBlock * kAttentionTile;
  s.p = reinterpret_cast<uint16_t*>(s.sums + kBlock * stride);
  s.wide = reinterpret_cast<Bf16*>(s.p + kBlock * kAttentionTile);
  pack_queries(job, stride, s.q);
  clear_results(job);
  const TileConfig config;
  _tile_loadconfig(&config);
  if (job.type == KvType::f8e4m3) {
    attend_tiles<F8>(job, stride, s);
  } else {
    attend_tiles<Bf16>(job, stride, s);
  }
  _tile_release();
}

}  // namespace atom::ops::cpu
#endif
