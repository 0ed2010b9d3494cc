// Row-parallel linear layers: what is not cut is added once.
#include "nn/linear.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/error.h"

namespace atom::nn {
namespace {

// The product of X [2, 4] with W [3, 4] and a bias, as a norm of the summed stream would see it: each rank
// holds its columns of W and of X.
std::vector<float> product(int ranks) {
  const std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<float> w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, bias = {100, 200, 300};
  const auto comms = in_process_communicators(ranks);
  std::vector<std::vector<float>> results(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ModelTables tables;
      tables.mesh.attn = comms[rank].get();
      const RowLinear linear(Scope(tables) / "o_proj", Axis::attn, 4, 3, 1, /*bias=*/true);
      const int64_t cols = 4 / ranks, first = rank * cols;
      tables.params[0].parts = {{make_tensor(w.data(), DType::f32, {3, 4}).cols(first, cols), {}}};
      tables.params[1].value = make_tensor(bias.data(), DType::f32, {3});

      std::vector<float> local;
      for (int64_t t = 0; t < 2; ++t) local.insert(local.end(), &x[t * 4 + first], &x[t * 4 + first] + cols);
      ThreadPool pool(1);
      Stream stream(pool);
      StepArena arena(1 << 16);
      const Batch batch{};
      Ctx c{stream, arena, batch, {}, {}, {}, tables.mesh, ops::Precision::exact};
      std::vector<float> zeros(6);
      Residual h(make_tensor(zeros.data(), DType::f32, {2, 3}));
      h += linear(c, make_tensor(local.data(), DType::f32, {2, cols}));
      const Tensor sum = h.settle(c);
      for (int64_t t = 0; t < 2; ++t)
        results[rank].insert(results[rank].end(), sum.row<float>(t), sum.row<float>(t) + 3);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<float>& result : results) EXPECT_EQ(result, results[0]);
  return results[0];
}

TEST(RowLinear, AddsItsBiasOnceHoweverManyRanksThereAre) {
  for (const int ranks : {1, 2, 4})
    EXPECT_EQ(product(ranks), (std::vector<float>{130, 270, 410, 170, 374, 578})) << ranks;
}

TEST(RowLinear, RefusesRanksThatWouldShareAUnit) {
  ModelTables tables;
  const auto comms = in_process_communicators(4);
  tables.mesh.attn = comms[0].get();
  EXPECT_THROW(RowLinear(Scope(tables) / "o_proj", Axis::attn, 4, 3, 2, false), Error);
}

}  // namespace
}  // namespace atom::nn
