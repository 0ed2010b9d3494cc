// Products with weights that have scales beside them: every entry against values computed here from the
// definitions.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "ops/cpu/dequant.h"
#include "ops/embed.h"
#include "ops/latent_attention.h"
#include "ops/linear.h"
#include "ops/moe.h"

namespace atom::ops {
namespace {

using Rng = std::mt19937;

ThreadPool& pool() {
  static ThreadPool instance(2);
  return instance;
}

double e4m3(uint8_t byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  if ((byte & 0x7F) == 0x7F) return NAN;
  const double value = exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return byte & 0x80 ? -value : value;
}

double e2m1(int code) {
  constexpr double kValues[] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  return code & 8 ? -kValues[code & 7] : kValues[code & 7];
}

struct Blocks {
  int64_t rows, cols, first_row = 0, first_col = 0;
};

// A stored matrix at an odd address with gaps between rows, its scales, and what it means.
class Stored {
 public:
  Stored(Rng& rng, DType type, int64_t rows, int64_t cols, Blocks b)
      : meaning(static_cast<size_t>(rows * cols)) {
    const int64_t stride = cols + 6, down = (b.first_row + rows + b.rows - 1) / b.rows,
                  across = (b.first_col + cols + b.cols - 1) / b.cols;
    bytes_.resize(1 + dtype_bytes(type, stride * (rows - 1) + cols));
    for (uint8_t& byte : bytes_) {
      do {
        byte = static_cast<uint8_t>(rng());
      } while (type == DType::f8e4m3 && (byte & 0x7F) == 0x7F);
    }
    part.data = make_tensor(bytes_.data() + 1, type, {rows, cols});
    part.data.strides[0] = stride;
    const int64_t scale_stride = across + 1;
    if (type == DType::f8e4m3) {
      wide_scales_.resize(static_cast<size_t>(down * scale_stride));
      for (float& s : wide_scales_) s = 0.02f * (1 + static_cast<float>(rng() % 1000) / 1000);
      part.scale.values = make_tensor(wide_scales_.data(), DType::f32, {down, across});
    } else {
      byte_scales_.resize(static_cast<size_t>(down * scale_stride));
      for (uint8_t& s : byte_scales_) s = static_cast<uint8_t>(120 + rng() % 8);
      part.scale.values = make_tensor(byte_scales_.data(), DType::e8m0, {down, across});
    }
    part.scale.values.strides[0] = scale_stride;
    part.scale.block_rows = b.rows;
    part.scale.block_cols = b.cols;
    part.scale.first_row = b.first_row;
    part.scale.first_col = b.first_col;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        const int64_t at = (r + b.first_row) / b.rows * scale_stride + (c + b.first_col) / b.cols;
        const int64_t element = r * stride + c;
        meaning[r * cols + c] = type == DType::f8e4m3
                                    ? e4m3(bytes_[1 + element]) * wide_scales_[at]
                                    : e2m1(bytes_[1 + element / 2] >> 4 * (element % 2) & 15) *
                                          std::ldexp(1.0, byte_scales_[at] - 127);
      }
    }
  }
  uint8_t& byte(int64_t r, int64_t c) { return bytes_[1 + r * part.data.strides[0] + c]; }

  WeightPart part;
  std::vector<double> meaning;  // [rows, cols]

 private:
  std::vector<uint8_t> bytes_, byte_scales_;
  std::vector<float> wide_scales_;
};

std::vector<float> normals(Rng& rng, int64_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n));
  for (float& v : values) v = normal(rng);
  return values;
}

struct Case {
  DType type;
  int64_t rows, cols;
  Blocks blocks;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const int64_t cols : {64, 128, 192, 256, 320, 576, 2880}) {
    list.push_back({DType::f8e4m3, 37, cols, {128, 128, 0, 0}});
    list.push_back({DType::f8e4m3, 21, cols, {128, 128, 120, 48}});
    list.push_back({DType::f4e2m1x2, 37, cols, {1, 32, 0, 0}});
  }
  for (const int64_t cols : {1, 31, 100, 515, 1100}) {
    list.push_back({DType::f8e4m3, 19, cols, {128, 128, 100, 5}});
    list.push_back({DType::f8e4m3, 70, cols, {24, 40, 0, 0}});
    list.push_back({DType::f8e4m3, 19, cols, {1, cols, 0, 0}});
    list.push_back({DType::f8e4m3, 19, cols, {19, cols, 0, 0}});
  }
  for (const int64_t first : {2, 16, 30}) list.push_back({DType::f4e2m1x2, 18, 102, {1, 32, 0, first}});
  list.push_back({DType::f8e4m3, 1, 20000, {128, 128, 0, 0}});
  list.push_back({DType::f8e4m3, 2, 40000, {128, 128, 0, 0}});
  return list;
}

std::string describe(const Case& c, const char* entry, int64_t tokens) {
  return fmt::format("{}: {} [{}, {}] in {} x {} from ({}, {}), {} tokens", entry, dtype_name(c.type), c.rows,
                     c.cols, c.blocks.rows, c.blocks.cols, c.blocks.first_row, c.blocks.first_col, tokens);
}

// Each entry of Linear that takes the op, with its output.
template <class Fn>
void each_entry(const Case& c, const Stored& w, std::vector<float>& x, int64_t tokens, Precision precision,
                const Fn& fn) {
  Stream stream(pool());
  const Tensor xs = make_tensor(x.data(), DType::f32, {tokens, c.cols});
  for (const Impl<Linear>& impl : impls<Linear>()) {
    std::vector<float> out(static_cast<size_t>(tokens * c.rows), NAN);
    const Linear op{make_tensor(out.data(), DType::f32, {tokens, c.rows}),
                    xs,
                    {{&w.part, 1}, c.rows, c.cols},
                    {},
                    precision};
    check(op);
    if (impl.refuse(stream, op) != nullptr) continue;
    impl.run(stream, op);
    fn(impl.name, out);
  }
}

TEST(ScaledWeights, EveryEntryMultipliesWithWhatIsStored) {
  Rng rng(3);
  for (const Case& c : cases()) {
    Stored w(rng, c.type, c.rows, c.cols, c.blocks);
    constexpr int64_t kMost = 40;
    std::vector<float> x = normals(rng, kMost * c.cols);
    std::vector<double> want(static_cast<size_t>(kMost * c.rows)), size(want.size());
    for (int64_t t = 0; t < kMost; ++t) {
      for (int64_t r = 0; r < c.rows; ++r) {
        for (int64_t k = 0; k < c.cols; ++k) {
          const double product = w.meaning[r * c.cols + k] * x[t * c.cols + k];
          want[t * c.rows + r] += product;
          size[t * c.rows + r] += std::fabs(product);
        }
      }
    }
    for (const Precision precision : {Precision::exact, Precision::fast}) {
      std::vector<std::vector<float>> first;  // per entry: the products of token 0 alone
      for (const int64_t tokens : {1, 3, 17, 40}) {
        size_t entry = 0;
        each_entry(c, w, x, tokens, precision, [&](const char* name, const std::vector<float>& out) {
          // Rounding x and w to bf16 is off by 2^-8 each at most.
          const double limit = std::strstr(name, "amx") != nullptr ? 0x1.02p-7 : 1e-6;
          for (size_t i = 0; i < out.size(); ++i) {
            ASSERT_LE(std::fabs(out[i] - want[i]), limit * size[i] + 1e-30)
                << describe(c, name, tokens) << " at " << i;
          }
          if (std::strstr(name, "amx") != nullptr || std::strstr(name, "ref") != nullptr) return;
          if (tokens == 1) first.push_back(out);
          const std::vector<float> alone(out.begin(), out.begin() + c.rows);
          EXPECT_EQ(alone, first.at(entry++)) << describe(c, name, tokens) << ": other bits than alone";
        });
      }
    }
  }
}

TEST(ScaledWeights, ANotANumberAmongWeightsIsSeen) {
  Rng rng(4);
  const Case c{DType::f8e4m3, 5, 300, {128, 128}};
  Stored w(rng, c.type, c.rows, c.cols, c.blocks);
  w.byte(3, 299) = 0xFF;
  w.byte(1, 0) = 0x7F;
  std::vector<float> x = normals(rng, 20 * c.cols);
  for (const int64_t tokens : {1, 20}) {
    each_entry(c, w, x, tokens, Precision::fast, [&](const char* name, const std::vector<float>& out) {
      for (int64_t r = 0; r < c.rows; ++r)
        EXPECT_EQ(std::isnan(out[r]), r == 1 || r == 3) << name << " row " << r;
    });
  }
}

TEST(ScaledWeights, GatedAndGroupedProductsAndExpertsUseTheScales) {
  Rng rng(5);
  constexpr int64_t kHidden = 96, kInter = 40, kTokens = 9;
  for (const DType type : {DType::f8e4m3, DType::f4e2m1x2}) {
    const Blocks blocks = type == DType::f8e4m3 ? Blocks{16, 24} : Blocks{1, 32};
    std::vector<Stored> gate, up, down;
    std::vector<WeightPart> both;
    for (int e = 0; e < 3; ++e) {
      gate.emplace_back(rng, type, kInter, kHidden, blocks);
      up.emplace_back(rng, type, kInter, kHidden, blocks);
      down.emplace_back(rng, type, kHidden, kInter, blocks);
    }
    for (int e = 0; e < 3; ++e) both.insert(both.end(), {gate[e].part, up[e].part});
    std::vector<Weight> gate_up, downs;
    for (int e = 0; e < 3; ++e) {
      gate_up.push_back({std::span(both).subspan(2 * e, 2), 2 * kInter, kHidden});
      downs.push_back({{&down[e].part, 1}, kHidden, kInter});
    }
    std::vector<float> x = normals(rng, kTokens * kHidden), weights = normals(rng, kTokens * 2);
    std::vector<int32_t> ids;
    for (int64_t t = 0; t < kTokens; ++t)
      ids.insert(ids.end(), {static_cast<int32_t>(t % 3), static_cast<int32_t>((t + 1) % 3)});
    Stream stream(pool());
    std::vector<std::vector<float>> outs;
    for (const Impl<MoeExperts>& impl : impls<MoeExperts>()) {
      std::vector<float>& out = outs.emplace_back(static_cast<size_t>(kTokens * kHidden));
      const MoeExperts op{.out = make_tensor(out.data(), DType::f32, {kTokens, kHidden}),
                          .x = make_tensor(x.data(), DType::f32, {kTokens, kHidden}),
                          .ids = make_tensor(ids.data(), DType::i32, {kTokens, 2}),
                          .weights = make_tensor(weights.data(), DType::f32, {kTokens, 2}),
                          .gate_up = gate_up,
                          .down = downs};
      check(op);
      impl.run(stream, op);
    }
    for (int64_t t = 0; t < kTokens; ++t) {
      std::vector<double> want(kHidden);
      for (int n = 0; n < 2; ++n) {
        const int e = ids[2 * t + n];
        std::vector<double> h(kInter);
        for (int64_t i = 0; i < kInter; ++i) {
          double g = 0, u = 0;
          for (int64_t k = 0; k < kHidden; ++k) {
            g += gate[e].meaning[i * kHidden + k] * x[t * kHidden + k];
            u += up[e].meaning[i * kHidden + k] * x[t * kHidden + k];
          }
          h[i] = g / (1 + std::exp(-g)) * u;
        }
        for (int64_t c = 0; c < kHidden; ++c) {
          for (int64_t i = 0; i < kInter; ++i)
            want[c] += weights[2 * t + n] * down[e].meaning[c * kInter + i] * h[i];
        }
      }
      double top = 0;
      for (const double v : want) top = std::max(top, std::fabs(v));
      for (const std::vector<float>& out : outs) {
        for (int64_t c = 0; c < kHidden; ++c)
          EXPECT_NEAR(out[t * kHidden + c], want[c], 1e-5 * top) << t << ", " << c;
      }
    }
  }
}

// Heads of 5 rows in blocks of 8: a head's rows lie in two blocks, as GLM's 192 + 256 do in blocks of 128.
TEST(ScaledWeights, HeadsNeedNotAlignWithBlocks) {
  Rng rng(6);
  constexpr int32_t kHeads = 7, kHeadRows = 5;
  constexpr int64_t kRank = 44, kTokens = 3;
  Stored w(rng, DType::f8e4m3, kHeads * kHeadRows, kRank, {8, 16, 3, 4});
  Stream stream(pool());
  for (const bool transposed : {false, true}) {
    const int32_t first = transposed ? 3 : 0, rows = transposed ? 2 : 3;
    const int64_t in = transposed ? kRank : rows, out_dim = transposed ? rows : kRank;
    std::vector<float> x = normals(rng, kTokens * kHeads * in);
    for (const Impl<HeadProject>& impl : impls<HeadProject>()) {
      std::vector<float> out(static_cast<size_t>(kTokens * kHeads * out_dim));
      const HeadProject op{make_tensor(out.data(), DType::f32, {kTokens, kHeads * out_dim}),
                           make_tensor(x.data(), DType::f32, {kTokens, kHeads * in}),
                           {{&w.part, 1}, kHeads * kHeadRows, kRank},
                           kHeads,
                           kHeadRows,
                           first,
                           rows,
                           in,
                           out_dim,
                           transposed};
      check(op);
      if (impl.refuse(stream, op) != nullptr) continue;
      impl.run(stream, op);
      for (int64_t t = 0; t < kTokens; ++t) {
        for (int64_t h = 0; h < kHeads; ++h) {
          for (int64_t o = 0; o < out_dim; ++o) {
            double want = 0, size = 0;
            for (int64_t i = 0; i < in; ++i) {
              const int64_t row = h * kHeadRows + first + (transposed ? o : i), col = transposed ? i : o;
              const double product = w.meaning[row * kRank + col] * x[(t * kHeads + h) * in + i];
              want += product;
              size += std::fabs(product);
            }
            EXPECT_NEAR(out[(t * kHeads + h) * out_dim + o], want, 1e-6 * size) << impl.name;
          }
        }
      }
    }
  }
}

TEST(ScaledWeights, RowsOfAPartKeepTheirScales) {
  Rng rng(7);
  Stored w(rng, DType::f8e4m3, 50, 20, {16, 8, 5, 3});
  std::vector<float> row(20);
  for (const int64_t begin : {0, 1, 10, 11, 12, 49}) {
    const WeightPart part = w.part.rows(begin, 50 - begin);
    check_part(part, 20);
    for (int64_t r = begin; r < 50; ++r) {
      dequantize_row(part, r - begin, row.data());
      for (int64_t c = 0; c < 20; ++c)
        EXPECT_EQ(row[c], static_cast<float>(w.meaning[r * 20 + c])) << r << ", " << c;
    }
  }
}

TEST(ScaledWeights, RowsCanBeLookedUp) {
  Rng rng(8);
  Stored w(rng, DType::f8e4m3, 30, 24, {7, 5});
  const std::vector<int32_t> ids = {29, 0, 7};
  std::vector<float> out(3 * 24);
  Stream stream(pool());
  run(stream, Embed{make_tensor(out.data(), DType::f32, {3, 24}), {{&w.part, 1}, 30, 24}, ids});
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(out[i], static_cast<float>(w.meaning[ids[i / 24] * 24 + i % 24])) << i;
  }
}

}  // namespace
}  // namespace atom::ops
