// Every implementation of the matrix products, on every storage type, against the reference.
#include "ops/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/cpu/dequant.h"

namespace atom::ops {
namespace {

using Rng = std::mt19937;

constexpr DType kTypes[] = {DType::f32,  DType::bf16, DType::f16,  DType::q4_0, DType::q4_1, DType::q5_0,
                            DType::q5_1, DType::q8_0, DType::q4_k, DType::q5_k, DType::q6_k};

ThreadPool& pool() {
  static ThreadPool instance(1);
  return instance;
}

void put_half(uint8_t* p, float value) {
  const uint16_t bits = f32_to_f16(value);
  std::memcpy(p, &bits, 2);
}

// One random block (or plain element) of a type: any quants, tame scales.
void random_block(Rng& rng, DType type, uint8_t* p) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> scale(0.5f, 2.0f);
  const DTypeInfo& info = dtype_info(type);
  if (type == DType::f32) {
    const float value = normal(rng);
    std::memcpy(p, &value, 4);
    return;
  }
  if (type == DType::bf16 || type == DType::f16) {
    const float value = normal(rng);
    const uint16_t bits = type == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
    std::memcpy(p, &bits, 2);
    return;
  }
  for (int i = 0; i < info.block_bytes; ++i) p[i] = static_cast<uint8_t>(rng());
  const float d = (rng() & 1 ? 1.0f : -1.0f) * scale(rng) / 16;
  put_half(type == DType::q6_k ? p + 208 : p, d / (info.block == 256 ? 32 : 1));
  if (type == DType::q4_1 || type == DType::q5_1) put_half(p + 2, normal(rng) / 2);
  if (type == DType::q4_k || type == DType::q5_k) put_half(p + 2, scale(rng) / 64);
}

// A stored matrix whose rows lie `gap` elements apart beyond their end, at an odd address.
struct Matrix {
  Matrix(Rng& rng, DType type, int64_t rows, int64_t cols, int64_t gap_blocks, int offset) {
    const DTypeInfo& info = dtype_info(type);
    const int64_t stride = cols + gap_blocks * info.block;
    bytes.resize(offset + dtype_bytes(type, stride * (rows - 1) + cols));
    for (size_t at = offset; at < bytes.size(); at += info.block_bytes) random_block(rng, type, &bytes[at]);
    view = make_tensor(bytes.data() + offset, type, {rows, cols});
    view.strides[0] = stride;
  }
  std::vector<uint8_t> bytes;  // ends with the last row: a read beyond it is seen by the sanitizer
  Tensor view;
};

struct Floats {
  Floats(int64_t rows, int64_t cols, int64_t gap) : values(rows * (cols + gap), NAN) {
    view = make_tensor(values.data(), DType::f32, {rows, cols});
    view.strides[0] = cols + gap;
  }
  void fill(Rng& rng) {
    std::normal_distribution<float> normal;
    for (int64_t r = 0; r < view.dim(0); ++r) {
      for (int64_t c = 0; c < view.dim(1); ++c) view.row<float>(r)[c] = normal(rng);
    }
  }
  std::vector<float> values;
  Tensor view;
};

// What Precision::fast makes of activations for a weight type.
void round_activations(DType type, Tensor x) {
  for (int64_t t = 0; t < x.dim(0); ++t) {
    float* row = x.row<float>(t);
    if (type == DType::bf16) {
      for (int64_t k = 0; k < x.dim(1); ++k) row[k] = bf16_to_f32(f32_to_bf16(row[k]));
    }
    for (int64_t b = 0; is_block_type(type) && b < x.dim(1); b += 32) {
      float most = 0;
      for (int i = 0; i < 32; ++i) most = std::max(most, std::fabs(row[b + i]));
      const float d = most / 127, inverse = most > 0 ? 127 / most : 0;
      for (int i = 0; i < 32; ++i) row[b + i] = d * std::nearbyint(row[b + i] * inverse);
    }
  }
}

// Products in double, and sum |w| |x| of each: the scale of rounding errors.
struct Products {
  Products(const Tensor& x, const Weight& w, const Tensor& bias)
      : rows(w.rows), sums(x.dim(0) * w.rows), sizes(x.dim(0) * w.rows) {
    std::vector<float> row(w.cols);
    int64_t out = 0;
    for (const WeightPart& part : w.parts) {
      // A minimum and a scaled quant that nearly cancel leave a rounding error of their own size.
      const float floor = is_block_type(part.data.dtype) ? 2.0f : 0.0f;
      for (int64_t r = 0; r < part.data.dim(0); ++r, ++out) {
        dequantize_row(part.data.dtype, part.data.row_bytes(r), row.data(), w.cols);
        for (int64_t t = 0; t < x.dim(0); ++t) {
          const float* xt = x.row<float>(t);
          double sum = bias ? bias.as<float>()[out] : 0, size = std::fabs(sum) + 1e-30;
          for (int64_t k = 0; k < w.cols; ++k) {
            sum += static_cast<double>(row[k]) * xt[k];
            size += (std::fabs(row[k]) + floor) * std::fabs(xt[k]);
          }
          sums[t * rows + out] = sum;
          sizes[t * rows + out] = size;
        }
      }
    }
  }
  // Largest error in units of `sizes`; got may have fewer tokens.
  double worst_error(const Tensor& got) const {
    double worst = 0;
    for (int64_t t = 0; t < got.dim(0); ++t) {
      for (int64_t r = 0; r < rows; ++r) {
        const double error = std::fabs(got.row<float>(t)[r] - sums[t * rows + r]) / sizes[t * rows + r];
        if (std::isnan(error)) return INFINITY;
        worst = std::max(worst, error);
      }
    }
    return worst;
  }
  int64_t rows;
  std::vector<double> sums, sizes;
};

double worst_error(const Tensor& got, const Tensor& x, const Weight& w, const Tensor& bias) {
  return Products(x, w, bias).worst_error(got);
}

constexpr int64_t kTokenCounts[] = {1, 2, 3, 5, 8, 17, 33, 64, 129};
constexpr int64_t kMostTokens = 129;

std::vector<int64_t> column_counts(DType type) {
  const int block = dtype_info(type).block;
  if (block == 256) return {256, 768};
  if (block == 32) return {32, 96, 576, 1056};
  return {1, 31, 64, 515, 1100};
}

// A matrix with odd strides, activations for it, and what to expect of them as they are and rounded.
struct ShapeCase {
  ShapeCase(Rng rng, DType type, int64_t rows, int64_t cols)
      : w(rng, type, rows, cols, cols % 2, 2), x(kMostTokens, cols, 3), part{w.view, {}} {
    x.fill(rng);
    Floats copy = x;
    copy.view.data = copy.values.data();
    round_activations(type, copy.view);
    exact = std::make_unique<Products>(x.view, weight(), Tensor{});
    rounded = std::make_unique<Products>(copy.view, weight(), Tensor{});
  }
  Weight weight() const { return {{&part, 1}, w.view.dim(0), w.view.dim(1)}; }
  Matrix w;
  Floats x;
  WeightPart part;
  std::unique_ptr<Products> exact, rounded;
};

// Made once for all entries.
const std::vector<std::unique_ptr<ShapeCase>>& shape_cases() {
  static const auto cases = [] {
    std::vector<std::unique_ptr<ShapeCase>> list;
    for (const DType type : kTypes) {
      for (const int64_t cols : column_counts(type)) {
        for (const int64_t rows : {1, 37, 100}) {
          if (rows == 100 && cols > 100) continue;  // keeps the run short
          list.push_back(
              std::make_unique<ShapeCase>(Rng(static_cast<uint32_t>(cols * 131 + rows)), type, rows, cols));
        }
      }
    }
    return list;
  }();
  return cases;
}

template <class Op>
std::vector<std::string> entry_names() {
  std::vector<std::string> names;
  for (const Impl<Op>& impl : impls<Op>()) names.emplace_back(impl.name);
  return names;
}

template <class Op>
const Impl<Op>& entry(const std::string& name) {
  for (const Impl<Op>& impl : impls<Op>()) {
    if (impl.name == name) return impl;
  }
  CHECK(false, "{}", name);
  std::abort();
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  return info.param.substr(info.param.find('.') + 1);
}

// True if the entry ran; false if it refuses.
template <class Op>
bool try_entry(const Impl<Op>& impl, const Op& op) {
  Stream stream(pool());
  check(op);
  if (impl.refuse(stream, op) != nullptr) return false;
  impl.run(stream, op);
  return true;
}

bool needs_absent_isa(const char* refusal) {
  return refusal != nullptr && std::string_view(refusal).starts_with("needs ");
}

// Refusal for the machine, asked with an op that suits any entry in one of the two kinds of weights.
template <class Op>
bool machine_lacks(const Impl<Op>& impl) {
  Stream stream(pool());
  Rng rng(1);
  const Matrix w(rng, DType::q8_0, 2, 32, 0, 0);
  const WeightPart part{w.view, {}};
  Floats x(32, 32, 0), out(32, 2, 0);
  Op op{};
  op.out = out.view;
  op.x = x.view;
  op.w = {{&part, 1}, 2, 32};
  op.precision = Precision::fast;
  return needs_absent_isa(impl.refuse(stream, op));
}

class LinearEntry : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (machine_lacks(entry<Linear>(GetParam()))) GTEST_SKIP() << "this machine lacks the instruction set";
  }
};
INSTANTIATE_TEST_SUITE_P(, LinearEntry, testing::ValuesIn(entry_names<Linear>()), test_name);

void compare_all_shapes(const Impl<Linear>& impl, Precision precision, double tolerance) {
  int ran = 0;
  for (const auto& c : shape_cases()) {
    const Weight w = c->weight();
    for (const int64_t tokens : kTokenCounts) {
      Floats out(tokens, w.rows, 5);
      if (!try_entry(impl, Linear{out.view, c->x.view.rows(0, tokens), w, {}, precision})) continue;
      ++ran;
      // Entries that keep float32 in fast mode pass with the activations as they are.
      double error = c->exact->worst_error(out.view);
      if (precision == Precision::fast) error = std::min(error, c->rounded->worst_error(out.view));
      ASSERT_LE(error, tolerance) << dtype_name(c->part.data.dtype) << " tokens " << tokens << " rows "
                                  << w.rows << " cols " << w.cols;
    }
  }
  // Only what rounds may sit out, and only where exact products are asked for.
  if (ran > 0) return;
  EXPECT_EQ(precision, Precision::exact);
  EXPECT_TRUE(std::string_view(impl.name).ends_with("_int8") ||
              std::string_view(impl.name) == "linear.amx_bf16");
}

TEST_P(LinearEntry, ExactProductsEqualTheReferenceToRounding) {
  compare_all_shapes(entry<Linear>(GetParam()), Precision::exact, 2e-6);
}

TEST_P(LinearEntry, FastProductsDifferOnlyByTheRoundingOfActivations) {
  compare_all_shapes(entry<Linear>(GetParam()), Precision::fast, 2e-6);
}

TEST_P(LinearEntry, StaysWithinItsOutput) {
  Rng rng(3);
  const Matrix w(rng, DType::bf16, 37, 64, 0, 1);
  const WeightPart part{w.view, {}};
  for (const int64_t tokens : {1, 3, 20}) {
    Floats x(tokens, 64, 0), out(tokens, 37, 9);
    x.fill(rng);
    const Linear op{out.view, x.view, {{&part, 1}, 37, 64}, {}, Precision::fast};
    if (!try_entry(entry<Linear>(GetParam()), op)) continue;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 37; i < 46; ++i) EXPECT_TRUE(std::isnan(out.view.row<float>(t)[i]));
    }
  }
}

TEST_P(LinearEntry, StacksPartsOfDifferentTypesAndAddsTheBias) {
  Rng rng(4);
  for (const auto& types : {std::vector{DType::q4_k, DType::q6_k, DType::q8_0},
                            std::vector{DType::bf16, DType::bf16, DType::bf16},
                            std::vector{DType::f32, DType::q4_1, DType::f16}}) {
    const Matrix a(rng, types[0], 19, 512, 1, 0), b(rng, types[1], 1, 512, 0, 2),
        c(rng, types[2], 33, 512, 0, 5);
    const WeightPart parts[] = {{a.view, {}}, {b.view, {}}, {c.view, {}}};
    const Weight weight{parts, 53, 512};
    Floats bias(1, 53, 0);
    bias.fill(rng);
    const Tensor flat_bias = bias.view.reshaped({53});
    for (const int64_t tokens : {1, 4, 40}) {
      for (const Precision precision : {Precision::exact, Precision::fast}) {
        Floats x(tokens, 512, 0), out(tokens, 53, 0);
        x.fill(rng);
        if (!try_entry(entry<Linear>(GetParam()), Linear{out.view, x.view, weight, flat_bias, precision}))
          continue;
        if (worst_error(out.view, x.view, weight, flat_bias) <= 2e-6) continue;
        ASSERT_EQ(precision, Precision::fast);
        round_activations(types[0], x.view);
        EXPECT_LE(worst_error(out.view, x.view, weight, flat_bias), 2e-6);
      }
    }
  }
}

// What greedy text depends on: a row's bits must not depend on its batch.
TEST_P(LinearEntry, GivesARowTheSameBitsAloneAndInABatch) {
  const Impl<Linear>& impl = entry<Linear>(GetParam());
  for (const DType type : kTypes) {
    Rng rng(5);
    const int64_t rows = 21, cols = 1280, most = 67;
    const Matrix w(rng, type, rows, cols, 0, 0);
    const WeightPart part{w.view, {}};
    const Weight weight{{&part, 1}, rows, cols};
    Floats x(most, cols, 0);
    x.fill(rng);
    for (const Precision precision : {Precision::exact, Precision::fast}) {
      Floats all(most, rows, 0);
      if (!try_entry(impl, Linear{all.view, x.view, weight, {}, precision})) continue;
      for (const int64_t tokens : {1, 2, 3, 7, 16, 21}) {
        for (const int64_t first : {0, 5, 46}) {
          Floats some(tokens, rows, 0);
          if (!try_entry(impl, Linear{some.view, x.view.rows(first, tokens), weight, {}, precision}))
            continue;
          ASSERT_EQ(0, std::memcmp(some.view.data, all.view.row_bytes(first), some.view.bytes()))
              << dtype_name(type) << " tokens " << tokens << " from " << first;
        }
      }
    }
  }
}

TEST_P(LinearEntry, GivesTheSameBitsOnAnyNumberOfThreads) {
  for (const DType type : {DType::bf16, DType::q4_1}) {
    Rng rng(10);
    const Matrix w(rng, type, 333, 288, 0, 0);
    const WeightPart part{w.view, {}};
    const Weight weight{{&part, 1}, 333, 288};
    for (const int64_t tokens : {1, 130}) {
      Floats x(tokens, 288, 0), alone(tokens, 333, 0), team(tokens, 333, 0);
      x.fill(rng);
      if (!try_entry(entry<Linear>(GetParam()), Linear{alone.view, x.view, weight, {}, Precision::fast}))
        continue;
      ThreadPool three(3);
      Stream stream(three);
      entry<Linear>(GetParam()).run(stream, Linear{team.view, x.view, weight, {}, Precision::fast});
      EXPECT_EQ(alone.values, team.values);
    }
  }
}

// Between entries the order of sums may differ, but nothing else: the activations are rounded alike.
TEST(Linear, RoundsActivationsAlikeForAnyNumberOfTokens) {
  for (const DType type : kTypes) {
    Rng rng(6);
    const int64_t rows = 20, cols = 1536, tokens = 20;
    const Matrix w(rng, type, rows, cols, 0, 0);
    const WeightPart part{w.view, {}};
    const Weight weight{{&part, 1}, rows, cols};
    Floats x(tokens, cols, 0), all(tokens, rows, 0), one(1, rows, 0);
    x.fill(rng);
    Stream stream(pool());
    run(stream, Linear{all.view, x.view, weight, {}, Precision::fast});
    for (int64_t t = 0; t < tokens; ++t) {
      run(stream, Linear{one.view, x.view.rows(t, 1), weight, {}, Precision::fast});
      for (int64_t r = 0; r < rows; ++r) {
        const float a = one.view.row<float>(0)[r], b = all.view.row<float>(t)[r];
        ASSERT_NEAR(a, b, 2e-6 * 6 * cols) << dtype_name(type);
      }
    }
  }
}

TEST(Linear, AcceptsEmptyBatches) {
  Rng rng(7);
  const Matrix w(rng, DType::bf16, 4, 32, 0, 0);
  const WeightPart part{w.view, {}};
  float nothing = 0;
  const Tensor none = make_tensor(&nothing, DType::f32, {0, 32}),
               out = make_tensor(&nothing, DType::f32, {0, 4});
  Stream stream(pool());
  for (const Precision precision : {Precision::exact, Precision::fast}) {
    run(stream, Linear{out, none, {{&part, 1}, 4, 32}, {}, precision});
  }
}

class GatedUpEntry : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (machine_lacks(entry<GatedUp>(GetParam()))) GTEST_SKIP() << "this machine lacks the instruction set";
  }
};
INSTANTIATE_TEST_SUITE_P(, GatedUpEntry, testing::ValuesIn(entry_names<GatedUp>()), test_name);

TEST_P(GatedUpEntry, EqualsTwoProductsAndTheActivation) {
  Rng rng(8);
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::q4_1, DType::q6_k}) {
    for (const int64_t half : {3, 70}) {
      const int64_t cols = 256;
      const Matrix gate(rng, type, half, cols, 0, 1), up(rng, type, half, cols, 1, 0);
      const WeightPart parts[] = {{gate.view, {}}, {up.view, {}}};
      const Weight weight{parts, 2 * half, cols};
      Floats bias(1, 2 * half, 0);
      bias.fill(rng);
      for (const int64_t tokens : {1, 3, 40, 300}) {
        for (const Precision precision : {Precision::exact, Precision::fast}) {
          Floats x(tokens, cols, 0), out(tokens, half, 3), both(tokens, 2 * half, 0);
          x.fill(rng);
          for (float& value : x.values) value *= 0.1f;
          const GatedUp op{out.view,         x.view,   weight, bias.view.reshaped({2 * half}),
                           Activation::silu, precision};
          if (!try_entry(entry<GatedUp>(GetParam()), op)) continue;
          // The entry of the same name multiplies; the rest is checked here.
          const std::string linear = "linear." + GetParam().substr(GetParam().find('.') + 1);
          Stream stream(pool());
          const Linear product{both.view, x.view, weight, op.bias, precision};
          if (linear == "linear.composed") {
            run(stream, product);
          } else {
            entry<Linear>(linear).run(stream, product);
          }
          for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t i = 0; i < half; ++i) {
              const double g = both.view.row<float>(t)[i], u = both.view.row<float>(t)[half + i];
              const double want = g / (1 + std::exp(-g)) * u;
              const double tolerance = 1e-5 * (1 + std::fabs(g)) * (1 + std::fabs(u));
              ASSERT_NEAR(out.view.row<float>(t)[i], want, tolerance)
                  << dtype_name(type) << " tokens " << tokens << " gate " << g << " up " << u;
            }
          }
        }
      }
    }
  }
}

// Gate values from a weight of one column: silu over its whole range.
TEST_P(GatedUpEntry, ActivationIsGoodToRoundingForLargeAndSmallGates) {
  std::vector<float> gates;
  for (float g = 1e-6f; g < 200; g *= 1.07f) gates.insert(gates.end(), {g, -g});
  gates.push_back(0);
  const int64_t n = static_cast<int64_t>(gates.size());
  std::vector<float> ones(n, 1.0f), x = {1.0f};
  const WeightPart parts[] = {{make_tensor(gates.data(), DType::f32, {n, 1}), {}},
                              {make_tensor(ones.data(), DType::f32, {n, 1}), {}}};
  Floats out(1, n, 0);
  const GatedUp op{out.view, make_tensor(x.data(), DType::f32, {1, 1}), {parts, 2 * n, 1}, {}, {}, {}};
  if (!try_entry(entry<GatedUp>(GetParam()), op)) return;  // every entry for float32 shares its activation
  for (int64_t i = 0; i < n; ++i) {
    const double want = gates[i] / (1 + std::exp(-static_cast<double>(gates[i])));
    EXPECT_NEAR(out.values[i], want, 4e-7 * std::fabs(want) + 1e-35) << gates[i];
  }
}

TEST(GatedUpDeathTest, RefusesOddRowsAndForeignShapes) {
  Rng rng(9);
  const Matrix w(rng, DType::f32, 3, 8, 0, 0);
  const WeightPart part{w.view, {}};
  Floats x(1, 8, 0), out(1, 3, 0);
  EXPECT_DEATH(check(GatedUp{out.view, x.view, {{&part, 1}, 3, 8}, {}, {}, {}}), "3 gate and up rows");
  EXPECT_DEATH(check(Linear{out.view, x.view, {{&part, 1}, 4, 8}, {}, {}}), "rows");
  EXPECT_DEATH(check(Linear{out.view, x.view.cols(0, 4), {{&part, 1}, 3, 8}, {}, {}}), "columns");
}

}  // namespace
}  // namespace atom::ops
