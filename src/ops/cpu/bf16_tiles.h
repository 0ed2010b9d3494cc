// Products in bf16 tiles, shared by the _amx files: activations as B tiles, blocks of weight and token tiles.
// For files that have included a Simd of AVX-512 first; internal linkage.
//
// out[t, r] = sum_k w[r, k] x[t, k]. A tile: 16 weight rows by 32 columns; B tile: 16 pairs of columns by up
// to 16 tokens; C tile: weight rows by tokens, transposed when stored.
#pragma once
#include <cstring>

#include "ops/cpu/amx_tiles.h"
#include "ops/cpu/linear_kernel.h"

namespace atom::ops {
namespace {

constexpr int kStep = 32;  // columns of one tile product
constexpr int64_t kTileBytes = 16 * kStep * 2;
constexpr int kSingles = 4;  // weight tiles of a block that has one tile of tokens

inline int64_t steps(int64_t cols) { return (cols + kStep - 1) / kStep; }

// B tiles [token tile][step][pair][token][2]; the last token tile is packed to the tokens it has.
inline int64_t prepared_bytes(int64_t tokens, int64_t cols) {
  return (tokens + kTokenTile - 1) / kTokenTile * steps(cols) * kTileBytes;
}

inline __m512i bf16_pairs(const float* x, int64_t n) {
  const int64_t low = n < 16 ? n : 16;
  const __m512 a = _mm512_maskz_loadu_ps(first_lanes(low), x);
  const __m512 b = _mm512_maskz_loadu_ps(first_lanes(n - low), x + low);
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
}

inline void prepare_tile(const Activations& x, int64_t first, int tokens, std::byte* out) {
  for (int64_t k = 0; k < x.cols; k += kStep, out += kTileBytes / 16 * tokens) {
    const int64_t n = x.cols - k < kStep ? x.cols - k : kStep;
    __m512i v[16];
    for (int t = 0; t < 16; ++t) {
      v[t] = t < tokens ? bf16_pairs(x.data + (first + t) * x.stride + k, n) : _mm512_setzero_si512();
    }
    if (tokens == 1) {
      _mm512_storeu_si512(out, v[0]);
      continue;
    }
    transpose(v);
    for (int pair = 0; pair < 16; ++pair) {
      _mm512_mask_storeu_epi32(out + pair * 4 * tokens, first_lanes(tokens), v[pair]);
    }
  }
}

inline void prepare(const Activations& x, int64_t begin, int64_t end, void* prepared) {
  for (int64_t t = begin; t < end; t += kTokenTile) {
    const int tokens = static_cast<int>(end - t < kTokenTile ? end - t : kTokenTile);
    prepare_tile(x, t, tokens, static_cast<std::byte*>(prepared) + t * steps(x.cols) * (kTileBytes / 16));
  }
}

// One or two token tiles; registers: C in 0..3, A from 4 up, B from 7 down.
struct TokenBlock {
  int tokens[2];
  const std::byte* x[2];
  int64_t out_stride;

  bool two() const { return tokens[1] > 0; }
  void configure() const {
    TileShapes shapes;
    for (int c = 0; c < 4; ++c) shapes.set(c, 16, 4 * tokens[two() ? c % 2 : 0]);
    shapes.set(4, 16, kStep * 2);
    shapes.set(5, 16, kStep * 2);
    shapes.set(6, 16, two() ? 4 * tokens[0] : kStep * 2);
    shapes.set(7, 16, 4 * tokens[two() ? 1 : 0]);
    load_tile_shapes(shapes);
  }
};

// Consecutive weight tiles.
struct WeightTiles {
  const std::byte* w;
  int64_t stride;  // bytes between rows
  int64_t steps;
  const std::byte* tile(int i) const { return w + i * 16 * stride; }
};

// C tile of `rows` weight rows (lines of 16 floats, or of one) to out[t * stride + row].
inline void store_tile(const float* c, int tokens, int rows, float* out, int64_t stride) {
  if (tokens == 1) {
    _mm512_mask_storeu_ps(out, first_lanes(rows), _mm512_loadu_ps(c));
    return;
  }
  __m512i v[16];
  for (int i = 0; i < 16; ++i) v[i] = _mm512_loadu_si512(c + 16 * i);
  transpose(v);
  for (int t = 0; t < tokens; ++t) _mm512_mask_storeu_epi32(out + t * stride, first_lanes(rows), v[t]);
}

// Up to four weight tiles by one token tile.
inline void block_single(const WeightTiles& w, int tiles, int rows, const TokenBlock& b, float* out) {
  const int line = 4 * b.tokens[0];
  const std::byte *x = b.x[0], *w0 = w.w, *w1 = w.tile(1), *w2 = w.tile(2), *w3 = w.tile(3);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < w.steps; ++k, x += 16 * line) {
    const int64_t at = k * kStep * 2;
    _tile_loadd(7, x, line);
    _tile_loadd(4, w0 + at, w.stride);
    _tile_dpbf16ps(0, 4, 7);
    if (tiles == 1) continue;
    _tile_loadd(5, w1 + at, w.stride);
    _tile_dpbf16ps(1, 5, 7);
    if (tiles == 2) continue;
    _tile_loadd(6, w2 + at, w.stride);
    _tile_dpbf16ps(2, 6, 7);
    if (tiles == 3) continue;
    _tile_loadd(4, w3 + at, w.stride);
    _tile_dpbf16ps(3, 4, 7);
  }
  alignas(64) float c[kSingles][256];
  const int pitch = b.tokens[0] == 1 ? 4 : 64;
  _tile_stored(0, c[0], pitch);
  _tile_stored(1, c[1], pitch);
  _tile_stored(2, c[2], pitch);
  _tile_stored(3, c[3], pitch);
  for (int i = 0; i < tiles; ++i) {
    store_tile(c[i], b.tokens[0], i == tiles - 1 ? rows - 16 * i : 16, out + 16 * i, b.out_stride);
  }
}

// One or two weight tiles by two token tiles.
inline void block_double(const WeightTiles& w, int tiles, int rows, const TokenBlock& b, float* out) {
  const int line0 = 4 * b.tokens[0], line1 = 4 * b.tokens[1];
  const std::byte *x0 = b.x[0], *x1 = b.x[1], *w0 = w.w, *w1 = w.tile(1);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t k = 0; k < w.steps; ++k, x0 += 16 * line0, x1 += 16 * line1) {
    const int64_t at = k * kStep * 2;
    _tile_loadd(6, x0, line0);
    _tile_loadd(4, w0 + at, w.stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, x1, line1);
    _tile_dpbf16ps(1, 4, 7);
    if (tiles == 1) continue;
    _tile_loadd(5, w1 + at, w.stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  alignas(64) float c[4][256];
  _tile_stored(0, c[0], 64);
  _tile_stored(1, c[1], b.tokens[1] == 1 ? 4 : 64);
  _tile_stored(2, c[2], 64);
  _tile_stored(3, c[3], b.tokens[1] == 1 ? 4 : 64);
  for (int i = 0; i < tiles; ++i) {
    const int in_tile = i == tiles - 1 ? rows - 16 * i : 16;
    store_tile(c[2 * i], b.tokens[0], in_tile, out + 16 * i, b.out_stride);
    store_tile(c[2 * i + 1], b.tokens[1], in_tile, out + 16 * b.out_stride + 16 * i, b.out_stride);
  }
}

inline void weight_rows(const WeightTiles& w, int64_t rows, const TokenBlock& b, float* out) {
  const int64_t most = 16 * (b.two() ? 2 : kSingles);
  for (int64_t r = 0; r < rows; r += most) {
    const WeightTiles here{w.w + r * w.stride, w.stride, w.steps};
    const int n = static_cast<int>(rows - r < most ? rows - r : most);
    (b.two() ? block_double : block_single)(here, (n + 15) / 16, n, b, out + r);
  }
}

// All tokens of the job by these weight tiles. Token blocks are the inner loop: the rows of a job are few
// enough to stay in L2.
inline void all_tokens(const RowJob& job, const WeightTiles& w, int64_t rows, float* out) {
  const int64_t tile_stride = steps(job.x.cols) * kTileBytes;
  const auto* x = static_cast<const std::byte*>(job.prepared) + job.first_token / kTokenTile * tile_stride;
  for (int64_t t = 0; t < job.tokens; t += 2 * kTokenTile) {
    const int64_t left = job.tokens - t;
    const int first = static_cast<int>(left < 16 ? left : 16), rest = static_cast<int>(left - first);
    const std::byte* tile = x + t / kTokenTile * tile_stride;
    const TokenBlock block{{first, rest < 16 ? rest : 16}, {tile, tile + tile_stride}, job.out_stride};
    block.configure();
    weight_rows(w, rows, block, out + t * job.out_stride);
  }
}

}  // namespace
}  // namespace atom::ops
