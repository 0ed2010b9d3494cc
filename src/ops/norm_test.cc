#include "ops/norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "comm/communicator.h"

namespace atom::ops {
namespace {

std::vector<float> randoms(int64_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

template <class Op>
std::vector<const Impl<Op>*> usable(const Stream& stream, const Op& op) {
  std::vector<const Impl<Op>*> list;
  for (const Impl<Op>& impl : impls<Op>()) {
    if (impl.refuse(stream, op) == nullptr) list.push_back(&impl);
  }
  return list;
}

TEST(AddRmsNorm, EveryImplementationAgreesWithTheDefinition) {
  ThreadPool pool(2);
  Stream stream(pool);
  for (const int64_t n : {1, 5, 8, 16, 31, 64, 100, 1024, 1536}) {
    for (const int64_t tokens : {1, 3, 70}) {
      for (const bool adds : {false, true}) {
        for (const float offset : {0.0f, 1.0f}) {
          const auto residual = randoms(tokens * n, 1), add = randoms(tokens * n, 2), weight = randoms(n, 3);
          AddRmsNorm op;
          op.weight = make_tensor(const_cast<float*>(weight.data()), DType::f32, {n});
          op.eps = 1e-5f;
          op.weight_offset = offset;
          auto r = residual, a = add;
          std::vector<float> out(tokens * n);
          op.residual = make_tensor(r.data(), DType::f32, {tokens, n});
          op.out = make_tensor(out.data(), DType::f32, {tokens, n});
          if (adds) op.add = make_tensor(a.data(), DType::f32, {tokens, n});
          check(op);
          for (const auto* impl : usable(stream, op)) {
            r = residual;
            a = add;
            std::fill(out.begin(), out.end(), -7.0f);
            impl->run(stream, op);
            for (int64_t t = 0; t < tokens; ++t) {
              double squares = 0;
              std::vector<float> x(n);
              for (int64_t i = 0; i < n; ++i) {
                x[i] = residual[t * n + i] + (adds ? add[t * n + i] : 0.0f);
                squares += static_cast<double>(x[i]) * x[i];
                ASSERT_EQ(r[t * n + i], x[i]) << impl->name;
              }
              const double scale = 1 / std::sqrt(squares / static_cast<double>(n) + 1e-5);
              for (int64_t i = 0; i < n; ++i) {
                const double expected = x[i] * scale * (static_cast<double>(offset) + weight[i]);
                ASSERT_NEAR(out[t * n + i], expected, 1e-6 * (1 + std::abs(expected)))
                    << impl->name << " n " << n;
              }
            }
          }
        }
      }
    }
  }
}

TEST(AddRmsNorm, MayWantOnlyTheSum) {
  ThreadPool pool(1);
  Stream stream(pool);
  std::vector<float> r = {1, 2, 3}, a = {10, 20, 30};
  AddRmsNorm op;
  op.residual = make_tensor(r.data(), DType::f32, {1, 3});
  op.add = make_tensor(a.data(), DType::f32, {1, 3});
  for (const auto* impl : usable(stream, op)) {
    r = {1, 2, 3};
    impl->run(stream, op);
    EXPECT_EQ(r, (std::vector<float>{11, 22, 33})) << impl->name;
  }
}

TEST(AddRmsNorm, ReducesTheSharesOfAllRanksFirst) {
  constexpr int kRanks = 3;
  auto ranks = in_process_communicators(kRanks);
  std::vector<std::vector<float>> residuals(kRanks), outs(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadPool pool(1);
      Stream stream(pool);
      residuals[rank] = {1, -2};
      outs[rank].resize(2);
      std::vector<float> add = {static_cast<float>(rank), 10.0f * static_cast<float>(rank)}, weight = {1, 1};
      AddRmsNorm op;
      op.out = make_tensor(outs[rank].data(), DType::f32, {1, 2});
      op.residual = make_tensor(residuals[rank].data(), DType::f32, {1, 2});
      op.add = make_tensor(add.data(), DType::f32, {1, 2});
      op.weight = make_tensor(weight.data(), DType::f32, {2});
      op.reduce = ranks[rank].get();
      run(stream, op);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(residuals[rank], (std::vector<float>{4, 28}));  // 1 + 0+1+2, -2 + 0+10+20
    EXPECT_EQ(outs[rank], outs[0]);
  }
}

TEST(RmsNorm, WorksInPlaceAndOnStridedRows) {
  ThreadPool pool(2);
  Stream stream(pool);
  constexpr int64_t kTokens = 5, kN = 37, kStride = 50;
  const auto x = randoms(kTokens * kStride, 4), weight = randoms(kN, 5);
  auto y = x;
  RmsNorm op;
  op.x = make_tensor(y.data(), DType::f32, {kTokens, kStride}).cols(0, kN);
  op.out = op.x;
  op.weight = make_tensor(const_cast<float*>(weight.data()), DType::f32, {kN});
  op.eps = 1e-6f;
  check(op);
  for (const auto* impl : usable(stream, op)) {
    y = x;
    impl->run(stream, op);
    for (int64_t t = 0; t < kTokens; ++t) {
      double squares = 0;
      for (int64_t i = 0; i < kN; ++i) squares += std::pow(static_cast<double>(x[t * kStride + i]), 2);
      const double scale = 1 / std::sqrt(squares / kN + 1e-6);
      for (int64_t i = 0; i < kStride; ++i) {
        const double expected = i < kN ? x[t * kStride + i] * scale * weight[i] : x[t * kStride + i];
        ASSERT_NEAR(y[t * kStride + i], expected, 2e-6 * (1 + std::abs(expected))) << impl->name;
      }
    }
  }
}

TEST(RmsNorm, WeightsMayCountFromOne) {
  ThreadPool pool(1);
  Stream stream(pool);
  struct Example {
    float weight, offset, first, second;
  };
  for (const Example& e : {Example{0, 1, 0.8485281f, 1.1313708f},
                           {0.5f, 1, 1.2727922f, 1.6970562f},
                           {0.5f, 0, 0.4242641f, 0.5656854f}}) {
    std::vector<float> x = {3, 4}, weight(2, e.weight), out(2);
    RmsNorm op;
    op.x = make_tensor(x.data(), DType::f32, {1, 2});
    op.out = make_tensor(out.data(), DType::f32, {1, 2});
    op.weight = make_tensor(weight.data(), DType::f32, {2});
    op.eps = 1e-6f;
    op.weight_offset = e.offset;
    run(stream, op);
    EXPECT_NEAR(out[0], e.first, 1e-6);
    EXPECT_NEAR(out[1], e.second, 1e-6);
  }
}

}  // namespace
}  // namespace atom::ops
