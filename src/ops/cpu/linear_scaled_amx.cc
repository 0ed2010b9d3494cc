// E4M3 and E2M1 weights by bf16 activations in AMX tiles, sums in float32.
//
// Both types are exact in bf16. Two weight tiles at a time are turned into bf16 in L1, and what is left to do
// is the scales:
//   - E2M1's are powers of two and go into the exponents, still exactly.
//   - E4M3's are multiplied with the sums of the columns that share them, so a weight is never rounded; for
//   more than
//     32 tokens, where that would cost more than widening, the scaled weight is rounded to bf16 once for all
//     of them.
// Bound for few tokens: about 5 cycles for 64 weights, a little more than a core needs to read 64 bytes.
#if defined(__x86_64__)
#include "ops/cpu/simd_avx512.h"
// The kernels need Simd.
#include "ops/cpu/bf16_tiles.h"
#include "ops/cpu/linear_float_kernel.h"

namespace atom::ops {
namespace {

constexpr int64_t kRunColumns = 256;  // of one pass: 32 rows of bf16 are 16 KiB
constexpr int64_t kUnit = 64;         // columns that are turned at a time
constexpr int64_t kFewTokens = 2 * kTokenTile;

int64_t padded(int64_t cols) { return (cols + kUnit - 1) / kUnit * kUnit; }

// Every E4M3 byte without its sign as bf16: tables of high and low bytes.
struct E4m3Tables {
  alignas(64) uint8_t high[128], low[128];
};
constexpr E4m3Tables make_tables() {
  E4m3Tables t{};
  for (int i = 0; i < 128; ++i) {
    int exponent = (i >> 3) + 120, mantissa = i & 7;
    if (i < 8 && i > 0) {  // subnormal: shifted until the leading one is implicit
      exponent = 121;
      while (mantissa < 8) {
        mantissa *= 2;
        --exponent;
      }
      mantissa -= 8;
    }
    int bits = i == 0 ? 0 : exponent << 7 | mantissa << 4;
    if (i == 127) bits = 0x7FC0;
    t.high[i] = static_cast<uint8_t>(bits >> 8);
    t.low[i] = static_cast<uint8_t>(bits);
  }
  return t;
}
constexpr E4m3Tables kTables = make_tables();

// 64 values of E4M3 as bf16, all finite and normal. In 128-bit lanes the unpacking takes 8 bytes of the first
// and 8 of the last half.
inline void store_normal(__m512i bytes, std::byte* out) {
  // With another bias the exponent's two highest bits become one and four, and the low four bits the upper
  // ones of the low byte. Byte 7 - i of a matrix says which bits are summed to bit i.
  bytes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), bytes);
  const __m512i high = _mm512_gf2p8affine_epi64_epi8(bytes, _mm512_set1_epi64(0x1020404040404080), 0x3C);
  const __m512i low = _mm512_gf2p8affine_epi64_epi8(bytes, _mm512_set1_epi64(0x0000000001020408), 0);
  _mm512_storeu_si512(out, _mm512_unpacklo_epi8(low, high));
  _mm512_storeu_si512(out + kUnit, _mm512_unpackhi_epi8(low, high));
}

// 64 values of any kind.
inline void store_any(__m512i bytes, std::byte* out) {
  bytes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), bytes);
  const __m512i magnitude =
      _mm512_permutex2var_epi8(_mm512_load_si512(kTables.high), bytes, _mm512_load_si512(kTables.high + 64));
  const __m512i sign = _mm512_and_si512(bytes, _mm512_set1_epi8(static_cast<char>(0x80)));
  const __m512i high = _mm512_or_si512(magnitude, sign);
  const __m512i low =
      _mm512_permutex2var_epi8(_mm512_load_si512(kTables.low), bytes, _mm512_load_si512(kTables.low + 64));
  _mm512_storeu_si512(out, _mm512_unpacklo_epi8(low, high));
  _mm512_storeu_si512(out + kUnit, _mm512_unpackhi_epi8(low, high));
}

// Twice a byte, less 16: above 0xEC only of zero, subnormals and NaN.
inline __m512i place_of(__m512i bytes) {
  return _mm512_sub_epi8(_mm512_add_epi8(bytes, bytes), _mm512_set1_epi8(16));
}

// Columns [k, k + n) of a row as bf16, zeros up to a whole unit; scales are left out. As many bytes from
// `ahead` on are asked for.
void turn_e4m3(const std::byte* row, int64_t k, int64_t n, const std::byte* ahead, std::byte* out) {
  constexpr int64_t kBatch = 4 * kUnit;  // looked through together
  const std::byte* p = row + k;
  int64_t i = 0;
  for (; i + kBatch <= n; i += kBatch, p += kBatch, out += 2 * kBatch) {
    __m512i bytes[4];
    for (int u = 0; u < 4; ++u) {
      bytes[u] = _mm512_loadu_si512(p + u * kUnit);
      _mm_prefetch(reinterpret_cast<const char*>(ahead + i + u * kUnit), _MM_HINT_T0);
    }
    const __m512i highest = _mm512_max_epu8(_mm512_max_epu8(place_of(bytes[0]), place_of(bytes[1])),
                                            _mm512_max_epu8(place_of(bytes[2]), place_of(bytes[3])));
    const bool normal = _mm512_cmpgt_epu8_mask(highest, _mm512_set1_epi8(static_cast<char>(0xEC))) == 0;
    for (int u = 0; u < 4; ++u) {
      normal ? store_normal(bytes[u], out + 2 * u * kUnit) : store_any(bytes[u], out + 2 * u * kUnit);
    }
  }
  for (; i < n; i += kUnit, p += kUnit, out += 2 * kUnit) {
    _mm_prefetch(reinterpret_cast<const char*>(ahead + i), _MM_HINT_T0);
    store_any(
        n - i >= kUnit ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi8((uint64_t{1} << (n - i)) - 1, p),
        out);
  }
}

// The same with scales, rounded.
void turn_e4m3_scaled(const RowJob& job, int64_t r, std::byte* out) {
  const std::byte* row = job.w + r * job.w_stride;
  turn_e4m3(row, 0, job.x.cols, row + 2 * job.w_stride, out);
  for_scales<F8>(job, r, 0, job.x.cols, [&](int64_t begin, int64_t end, float factor) {
    const __m512 scale = _mm512_set1_ps(factor * F8::kUnit);
    for (int64_t k = begin; k < end; k += kStep) {
      const __m512i pairs = _mm512_loadu_si512(out + 2 * k);
      const auto widened = [](__m256i half) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
      };
      const __m512 low = _mm512_mul_ps(widened(_mm512_castsi512_si256(pairs)), scale);
      const __m512 high = _mm512_mul_ps(widened(_mm512_extracti64x4_epi64(pairs, 1)), scale);
      _mm512_storeu_si512(out + 2 * k, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
    }
  });
}

// E2M1 with the scales of its blocks of 32 columns, which begin at the row's first. False if a scale is so
// far from one that the product leaves bf16's exponents.
bool turn_e2m1(const RowJob& job, int64_t r, int64_t k, int64_t n, const std::byte* ahead, std::byte* out) {
  const __m512i codes = _mm512_set4_epi64(  // of 0, 0.5, 1, 1.5 | 2, 3, 4, 6 and their negatives
      static_cast<int64_t>(0xC0C0C080C040C000), static_cast<int64_t>(0xBFC0BF80BF008000), 0x40C0408040404000,
      0x3FC03F803F000000);
  constexpr __mmask32 kNotZero = 0xFEFEFEFE;
  const std::byte* row = job.w + r * job.w_stride + k / 2;
  const auto* scales = reinterpret_cast<const uint8_t*>(job.scales.data + r * job.scales.stride) + k / kStep;
  for (int64_t i = 0; i < n; i += kStep, row += kStep / 2, out += 2 * kStep, ++scales) {
    _mm_prefetch(reinterpret_cast<const char*>(ahead + i / 2), _MM_HINT_T0);
    if (*scales < 3 || *scales > 250) return false;
    const auto exponent = static_cast<int16_t>((*scales - 127) * 128);
    const __m512i values = _mm512_mask_add_epi16(codes, kNotZero, codes, _mm512_set1_epi16(exponent));
    const __m128i bytes = n - i >= kStep ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(row))
                                         : _mm_maskz_loadu_epi8((1u << (n - i) / 2) - 1, row);
    // Two values a byte to one a word; of an index only the low five bits count, and the table repeats.
    const __m512i pairs = _mm512_cvtepu8_epi32(bytes);
    const __m512i index = _mm512_or_si512(pairs, _mm512_slli_epi32(pairs, 12));
    _mm512_storeu_si512(out, _mm512_permutexvar_epi16(index, values));
  }
  return true;
}

// A row of any scaled type as bf16, by way of float32.
void turn_any(const RowJob& job, int64_t r, float* wide, std::byte* out) {
  widen(job, r, 0, job.x.cols, wide);
  auto* to = reinterpret_cast<uint16_t*>(out);
  for (int64_t k = 0; k < job.x.cols; k += 16) {
    const int64_t n = job.x.cols - k < 16 ? job.x.cols - k : 16;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + k), Simd::to_bf16(Simd::load_n(wide + k, n)));
  }
}

// Scales may be kept out of the tiles, or are in their exponents, if they change with steps of columns only.
bool scales_on_steps(const RowJob& job) {
  const RowScales& s = job.scales;
  if (job.type == DType::f4e2m1x2) return s.first_col == 0;
  return (s.block_cols % kStep == 0 && s.first_col % kStep == 0) || s.first_col + job.x.cols <= s.block_cols;
}

// Up to 32 whole rows as bf16.
WeightTiles whole_rows(const RowJob& job, int64_t row, int64_t rows) {
  const int64_t stride = 2 * padded(job.x.cols), cols = job.x.cols;
  auto* wide = reinterpret_cast<float*>(job.scratch + 2 * 16 * stride);
  const bool on_steps = scales_on_steps(job);
  for (int64_t r = 0; r < rows; ++r) {
    std::byte* line = job.scratch + r * stride;
    std::memset(line + stride - 2 * kUnit, 0, 2 * kUnit);
    if (job.type == DType::f8e4m3 && on_steps) {
      turn_e4m3_scaled(job, row + r, line);
    } else if (!(job.type == DType::f4e2m1x2 && on_steps &&
                 turn_e2m1(job, row + r, 0, cols, job.w + (row + r + 2) * job.w_stride, line))) {
      turn_any(job, row + r, wide, line);
    }
  }
  std::memset(job.scratch + rows * stride, 0, static_cast<size_t>(((rows + 15) / 16 * 16 - rows) * stride));
  return {job.scratch, stride, steps(cols)};
}

// Sums of up to 32 rows and 32 tokens: four C tiles, and what was taken out of them with scales.
class Sums {
 public:
  Sums(const RowJob& job, const TokenBlock& block, int64_t row, int64_t rows)
      : job_(job), block_(block), apart_(job.type == DType::f8e4m3) {
    begin(row, rows);
  }

  void begin(int64_t row, int64_t rows) {
    rows_ = static_cast<int>(rows);
    pending_ = -1;
    const RowScales& s = job_.scales;
    for (int64_t r = 0; r < 32; ++r) {
      const int64_t last = r < rows ? r : rows - 1;
      scales_[r] = s.data + (row + last + s.first_row) / s.block_rows * s.stride;
    }
    std::memset(sums_, 0, sizeof(sums_));
    clear_tiles();
  }

  // Adds the step of columns from k on, turned into rows of `stride` bytes.
  void add(const std::byte* w, int64_t stride, int64_t k) const {
    const int line0 = 4 * block_.tokens[0], line1 = 4 * block_.tokens[1];
    if (!block_.two()) {
      _tile_loadd(7, block_.x[0] + k / 2 * line0, line0);
      _tile_loadd(4, w, stride);
      _tile_dpbf16ps(0, 4, 7);
      if (rows_ <= 16) return;
      _tile_loadd(5, w + 16 * stride, stride);
      _tile_dpbf16ps(2, 5, 7);
      return;
    }
    _tile_loadd(6, block_.x[0] + k / 2 * line0, line0);
    _tile_loadd(7, block_.x[1] + k / 2 * line1, line1);
    _tile_loadd(4, w, stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (rows_ <= 16) return;
    _tile_loadd(5, w + 16 * stride, stride);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }

  // Takes the sums of a block of columns out of the tiles. They are added, times the rows' scales of that
  // block, when the next ones are taken: until then their stores, narrower than the loads, have reached the
  // cache.
  void take(int64_t block) {
    const int next = turn_ ^ 1;
    float(*taken)[256] = taken_[next];
    _tile_stored(0, taken[0], pitch(0));
    if (block_.two()) _tile_stored(1, taken[1], pitch(1));
    if (rows_ > 16) {
      _tile_stored(2, taken[2], pitch(0));
      if (block_.two()) _tile_stored(3, taken[3], pitch(1));
    }
    clear_tiles();
    if (pending_ >= 0) accumulate();
    turn_ = next;
    pending_ = block;
  }

  void store(float* out) {
    accumulate();
    for (int i = 0; 16 * i < rows_; ++i) {
      const int rows = rows_ - 16 * i < 16 ? rows_ - 16 * i : 16;
      store_sums(sums_[2 * i], block_.tokens[0], rows, out + 16 * i);
      if (block_.two()) {
        store_sums(sums_[2 * i + 1], block_.tokens[1], rows, out + 16 * block_.out_stride + 16 * i);
      }
    }
  }

 private:
  int pitch(int token_tile) const { return 4 * block_.tokens[token_tile]; }

  void store_sums(const float* sums, int tokens, int rows, float* out) const {
    if (tokens == 1) return store_tile(sums, 1, rows, out, block_.out_stride);
    alignas(64) float lines[256];
    for (int r = 0; r < 16; ++r) Simd::store(lines + 16 * r, Simd::load_n(sums + r * tokens, tokens));
    store_tile(lines, tokens, rows, out, block_.out_stride);
  }

  static void clear_tiles() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }

  // Adds what was taken last. A tile is [16 rows][tokens]: as many vectors as there are tokens.
  void accumulate() {
    for (int i = 0; 16 * i < rows_; ++i) {
      const std::byte* const* scales = scales_ + 16 * i;
      const bool uniform = !apart_ || scales[0] == scales[15];
      const Reg scale = Simd::set1(apart_ ? F8::scale(scales[0], pending_) : 1);
      for (int j = 0; j < (block_.two() ? 2 : 1); ++j) {
        const int tokens = block_.tokens[j];
        float* sums = sums_[2 * i + j];
        const float* now = taken_[turn_][2 * i + j];
        if (uniform) {
          for (int v = 0; v < tokens; ++v, sums += 16, now += 16) {
            Simd::store(sums, Simd::fma(Simd::load(now), scale, Simd::load(sums)));
          }
          continue;
        }
        for (int r = 0; r < 16; ++r, sums += tokens, now += tokens) {
          const Reg row = Simd::set1(F8::scale(scales[r], pending_));
          Simd::store_n(sums, Simd::fma(Simd::load_n(now, tokens), row, Simd::load_n(sums, tokens)), tokens);
        }
      }
    }
  }

  const RowJob& job_;
  const TokenBlock& block_;
  const bool apart_;  // scales are not in the tiles
  int rows_ = 0;
  const std::byte* scales_[32];  // of each row
  int turn_ = 0;
  int64_t pending_ = -1;  // block of columns of what was taken last, which is in taken_[turn_]
  alignas(64) float taken_[2][4][256];
  alignas(64) float sums_[4][256];
};

// A run of columns of up to 32 rows, turned in one go.
struct Run {
  int64_t row, rows, k, end;
};

// Up to 32 tokens. While the products of one run are in the tiles' pipeline, the next run is turned.
class FewTokens {
 public:
  FewTokens(const RowJob& job, const TokenBlock& block)
      : job_(job),
        block_(block),
        cols_(job.x.cols),
        run_(cols_ < kRunColumns ? padded(cols_) : kRunColumns),
        stride_(2 * run_ + 64),
        apart_(job.type == DType::f8e4m3) {}

  // False if a scale cannot be had this way; what is in `out` is of no use then.
  bool operator()() {
    Run now = run_at(0, 0);
    if (!turn(now, 0, now.rows, buffer(0))) return false;
    Sums sums(job_, block_, now.row, now.rows);
    for (int turn_to = 1;; turn_to ^= 1) {
      const bool last_of_rows = now.end == cols_;
      const Run next = last_of_rows ? run_at(now.row + now.rows, 0) : run_at(now.row, now.end);
      if (!multiply(now, buffer(turn_to ^ 1), next, buffer(turn_to), sums)) return false;
      if (last_of_rows) sums.store(job_.out + now.row);
      if (next.rows == 0) return true;
      if (last_of_rows) sums.begin(next.row, next.rows);
      now = next;
    }
  }

  static int64_t scratch_bytes(int64_t cols) {
    return 2 * 32 * (2 * (cols < kRunColumns ? padded(cols) : kRunColumns) + 64);
  }

 private:
  std::byte* buffer(int i) const { return job_.scratch + i * 32 * stride_; }

  Run run_at(int64_t row, int64_t k) const {
    const int64_t rows = job_.rows - row;
    return {row, rows < 32 ? rows : 32, k, k + run_ < cols_ ? k + run_ : cols_};
  }

  // Rows [begin, end) of the run.
  bool turn(const Run& run, int64_t begin, int64_t end, std::byte* to) const {
    const int64_t values_per_byte = apart_ ? 1 : 2;
    for (int64_t r = begin; r < end; ++r) {
      const std::byte* row = job_.w + (run.row + r) * job_.w_stride;
      // The same row's next run, or the first one of the row that will take its place.
      const std::byte* ahead = run.end < cols_ ? row + run.end / values_per_byte : row + 32 * job_.w_stride;
      if (apart_) {
        turn_e4m3(row, run.k, run.end - run.k, ahead, to + r * stride_);
      } else if (!turn_e2m1(job_, run.row + r, run.k, run.end - run.k, ahead, to + r * stride_)) {
        return false;
      }
    }
    return true;
  }

  bool multiply(const Run& now, const std::byte* w, const Run& next, std::byte* next_w, Sums& sums) const {
    const RowScales& s = job_.scales;
    const int64_t share =
        (next.rows * kStep + now.end - now.k - 1) / (now.end - now.k);  // rows of `next` per step
    int64_t turned = 0;
    for (int64_t at = now.k; at < now.end;) {
      const int64_t column_block = apart_ ? (at + s.first_col) / s.block_cols : 0;
      const int64_t block_end = apart_ ? (column_block + 1) * s.block_cols - s.first_col : cols_;
      const int64_t end = block_end < now.end ? block_end : now.end;
      for (; at < end; at += kStep) {
        sums.add(w + 2 * (at - now.k), stride_, at);
        const int64_t until = turned + share < next.rows ? turned + share : next.rows;
        if (!turn(next, turned, until, next_w)) return false;
        turned = until;
      }
      if (end == block_end || end == cols_) sums.take(column_block);
    }
    return turn(next, turned, next.rows, next_w);
  }

  const RowJob& job_;
  const TokenBlock& block_;
  const int64_t cols_, run_, stride_;  // the stride keeps rows of a tile in different sets of the cache
  const bool apart_;                   // scales are not in the tiles
};

}  // namespace

int64_t scaled_tile_scratch(int64_t cols) {
  const int64_t few = FewTokens::scratch_bytes(cols), many = 32 * 2 * padded(cols) + 4 * padded(cols);
  return few > many ? few : many;
}

void scaled_tile_rows(const RowJob& job) {
  const int64_t tile_stride = steps(job.x.cols) * kTileBytes;
  const auto* x = static_cast<const std::byte*>(job.prepared) + job.first_token / kTokenTile * tile_stride;
  const int first = static_cast<int>(job.tokens < kTokenTile ? job.tokens : kTokenTile);
  const TokenBlock block{{first, static_cast<int>(job.tokens) - first}, {x, x + tile_stride}, job.out_stride};
  bool done = false;
  if (job.tokens <= kFewTokens && scales_on_steps(job)) {
    block.configure();
    done = FewTokens(job, block)();
  }
  for (int64_t r = 0; r < job.rows && !done; r += 32) {
    const int64_t rows = job.rows - r < 32 ? job.rows - r : 32;
    all_tokens(job, whole_rows(job, r, rows), rows, job.out + r);
  }
  _tile_release();
}

}  // namespace atom::ops
#endif
