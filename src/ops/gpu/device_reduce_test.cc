// Ops that sum over ranks, on several ranks with GPUs against the CPU's references.
#include <cmath>
#include <random>

#include "comm/gpu/device_ranks.h"
#include "ops/norm.h"
#include "ops/spread_norm.h"

namespace atom::ops {
namespace {

using DeviceReduce = DeviceRanks;

std::vector<float> normals(int64_t n, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n));
  for (float& v : values) v = normal(random);
  return values;
}

double error(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = static_cast<double>(got[i]) - want[i];
    difference += d * d;
    size += static_cast<double>(want[i]) * want[i];
  }
  return std::sqrt(difference / std::max(size, 1e-30));  // NaN if there is one
}

TEST_F(DeviceReduce, SumAddAndNormAgreeWithTheReferenceOnEveryRank) {
  struct Case {
    int64_t rows, hidden;
    bool out = true;
  };
  // One row, more rows than blocks, rows that do not come in fours, the widest row and one that is too wide.
  const std::vector<Case> cases = {{1, 4},    {1, 4096},  {3, 5120},  {150, 64},      {300, 128},
                                   {5, 1001}, {2, 16384}, {2, 20480}, {7, 256, false}};
  for (const int n : {2, 3}) {
    on_ranks(n, Traffic::all, [&](DeviceRank& rank) {
      ThreadPool pool(1);
      Stream cpu(pool);
      for (const Case& c : cases) {
        const int64_t elements = c.rows * c.hidden;
        std::vector<float> residual = normals(elements, 1), weight = normals(c.hidden, 2);
        std::vector<float> sum(static_cast<size_t>(elements)), out(static_cast<size_t>(elements));
        for (int r = 0; r < n; ++r) {
          const std::vector<float> add = normals(elements, 10 + r);
          for (int64_t i = 0; i < elements; ++i) sum[i] = r == 0 ? add[i] : sum[i] + add[i];
        }
        auto host = [&](std::vector<float>& v) {
          return make_tensor(v.data(), DType::f32, {c.rows, c.hidden});
        };
        std::vector<float> want_residual = residual;
        AddRmsNorm want;
        want.residual = host(want_residual);
        want.add = host(sum);
        if (c.out) want.out = host(out);
        if (c.out) want.weight = make_tensor(weight.data(), DType::f32, {c.hidden});
        want.eps = 1e-5f;
        want.weight_offset = 1;
        if (elements > 0) impls<AddRmsNorm>().back().run(cpu, want);

        int entries = 0;
        for (const Impl<AddRmsNorm>& impl : gpu_impls<AddRmsNorm>()) {
          rank.memory.release(0);
          AddRmsNorm op;
          op.residual = rank.upload(residual, {c.rows, c.hidden});
          op.add = rank.upload(normals(elements, 10 + rank.comm.rank()), {c.rows, c.hidden});
          const std::vector<float> poison(static_cast<size_t>(elements), std::nanf(""));
          if (c.out) op.out = rank.upload(poison, {c.rows, c.hidden});
          if (c.out) op.weight = rank.upload(weight, {c.hidden});
          op.eps = want.eps;
          op.weight_offset = want.weight_offset;
          op.reduce = &rank.comm;
          check(op);
          if (impl.refuse(rank.stream, op) != nullptr) continue;
          ++entries;
          for (int round = 0; round < 3; ++round) {
            rank.write(op.residual, residual);
            rank.write(op.add, normals(elements, 10 + rank.comm.rank()));
            impl.run(rank.stream, op);
            EXPECT_LT(error(rank.download(op.residual), want_residual), 1e-6)
                << impl.name << " " << n << " ranks, " << c.rows << " rows of " << c.hidden;
            if (!c.out) continue;
            EXPECT_LT(error(rank.download(op.out), out), 1e-5)
                << impl.name << " " << n << " ranks, " << c.rows << " rows of " << c.hidden;
          }
        }
        EXPECT_GE(entries, 1);
      }
    });
  }
}

TEST_F(DeviceReduce, TheNormOfSpreadVectorsIsThatOfTheWholeVector) {
  constexpr int64_t kRows = 70, kLanes = 48, kStride = 60;
  for (const int n : {2, 3, 4}) {
    std::vector<float> whole = normals(kRows * kLanes, 1), weight = normals(kLanes, 2);
    const std::vector<float> in = whole;
    ThreadPool pool(1);
    Stream cpu(pool);
    SpreadRmsNorm want;
    want.x = make_tensor(whole.data(), DType::f32, {kRows, kLanes});
    want.weight = make_tensor(weight.data(), DType::f32, {kLanes});
    want.total = kLanes;
    want.eps = 0.25f;
    run(cpu, want);
    on_ranks(n, Traffic::all, [&](DeviceRank& rank) {
      const int64_t lanes = kLanes / n, first = rank.comm.rank() * lanes;
      std::vector<float> mine(static_cast<size_t>(kRows * kStride), 99), expected = mine;
      for (int64_t t = 0; t < kRows; ++t) {
        std::copy_n(&in[t * kLanes + first], lanes, &mine[t * kStride]);
        std::copy_n(&whole[t * kLanes + first], lanes, &expected[t * kStride]);
      }
      const Tensor all = rank.upload(mine, {kRows, kStride});
      SpreadRmsNorm op = want;
      op.x = all.cols(0, lanes);
      op.weight = rank.upload({weight.begin() + first, weight.begin() + first + lanes}, {lanes});
      op.reduce = &rank.comm;
      run(rank.stream, op);
      EXPECT_LT(error(rank.download(all), expected), 1e-6) << n << " ranks";
    });
  }
}

}  // namespace
}  // namespace atom::ops
