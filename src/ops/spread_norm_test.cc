// The norm of vectors that lie on several ranks.
#include "ops/spread_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <thread>
#include <vector>

#include "comm/communicator.h"

namespace atom::ops {
namespace {

// Two rows of 8 lanes over `ranks`, where lanes are in pairs and `copies` neighbours hold the same pairs.
std::vector<std::vector<float>> normalised(int ranks, int copies) {
  constexpr int64_t kLanes = 8, kStride = 11;
  const int64_t n = kLanes * copies / ranks;
  const auto comms = in_process_communicators(ranks);
  std::vector<std::vector<float>> rows(2, std::vector<float>(kLanes));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const int64_t first = rank / copies * n;
      std::vector<float> x(2 * kStride, 99), weight(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) {
        weight[i] = 0.5f + static_cast<float>(first + i);
        for (int64_t t = 0; t < 2; ++t)
          x[t * kStride + i] = static_cast<float>((first + i + 1) * (t + 1) % 7) - 2;
      }
      ThreadPool pool(1);
      Stream stream(pool);
      SpreadRmsNorm op;
      op.x = make_tensor(x.data(), DType::f32, {2, kStride}).cols(0, n);
      op.weight = make_tensor(weight.data(), DType::f32, {n});
      op.total = kLanes;
      op.copies = copies;
      op.eps = 0.25f;
      op.reduce = comms[rank].get();
      run(stream, op);
      EXPECT_EQ(x[n], 99);  // what lies beside the lanes stays
      if (rank % copies != 0) return;
      for (int64_t t = 0; t < 2; ++t) std::copy_n(&x[t * kStride], n, &rows[t][first]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return rows;
}

TEST(SpreadRmsNorm, IsTheNormOfTheWholeVector) {
  const std::vector<std::vector<float>> got = normalised(1, 1);
  for (int64_t t = 0; t < 2; ++t) {
    double squares = 0;
    for (int64_t i = 0; i < 8; ++i) squares += std::pow(static_cast<double>((i + 1) * (t + 1) % 7) - 2, 2);
    for (int64_t i = 0; i < 8; ++i) {
      const double x = static_cast<double>((i + 1) * (t + 1) % 7) - 2;
      EXPECT_NEAR(got[t][i], x / std::sqrt(squares / 8 + 0.25) * (0.5 + static_cast<double>(i)), 1e-5);
    }
  }
}

TEST(SpreadRmsNorm, RanksAndCopiesOfLanesDoNotChangeIt) {
  const std::vector<std::vector<float>> whole = normalised(1, 1);
  for (const auto& [ranks, copies] : {std::pair(2, 1), {4, 1}, {4, 2}, {8, 4}}) {
    const std::vector<std::vector<float>> got = normalised(ranks, copies);
    for (int64_t t = 0; t < 2; ++t) {
      for (int64_t i = 0; i < 8; ++i) EXPECT_NEAR(got[t][i], whole[t][i], 1e-6) << ranks << " " << copies;
    }
  }
}

}  // namespace
}  // namespace atom::ops
