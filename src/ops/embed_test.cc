#include "ops/embed.h"

#include <gtest/gtest.h>

#include <vector>

namespace atom::ops {
namespace {

TEST(Embed, WidensRowsOfSeveralPartsAndZeroesForeignIds) {
  ThreadPool pool(2);
  Stream stream(pool);
  constexpr int64_t kCols = 6;
  std::vector<float> first(2 * kCols);
  std::vector<uint16_t> second(3 * kCols);
  for (size_t i = 0; i < first.size(); ++i) first[i] = static_cast<float>(i) + 0.1f;
  for (size_t i = 0; i < second.size(); ++i) second[i] = f32_to_bf16(100.0f + static_cast<float>(i));
  const WeightPart parts[] = {{make_tensor(first.data(), DType::f32, {2, kCols}), {}},
                              {make_tensor(second.data(), DType::bf16, {3, kCols}), {}}};
  const std::vector<int32_t> ids = {10, 14, 9, 15, 11, 12, 12};
  std::vector<float> out(ids.size() * kCols, -1.0f);
  Embed op;
  op.out = make_tensor(out.data(), DType::f32, {static_cast<int64_t>(ids.size()), kCols});
  op.table = {parts, 5, kCols};
  op.ids = ids;
  op.first_id = 10;
  run(stream, op);
  for (size_t t = 0; t < ids.size(); ++t) {
    const int64_t row = ids[t] - 10;
    for (int64_t c = 0; c < kCols; ++c) {
      const float expected = row < 0 || row >= 5 ? 0
                             : row < 2           ? first[row * kCols + c]
                                                 : bf16_to_f32(second[(row - 2) * kCols + c]);
      EXPECT_EQ(out[t * kCols + c], expected) << "id " << ids[t];
    }
  }
}

TEST(Embed, ManyIdsAreSharedAmongThreads) {
  ThreadPool pool(3);
  Stream stream(pool);
  constexpr int64_t kRows = 50, kCols = 700;
  std::vector<float> table(kRows * kCols);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i);
  const WeightPart parts[] = {{make_tensor(table.data(), DType::f32, {kRows, kCols}), {}}};
  std::vector<int32_t> ids(400);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 7 % kRows);
  std::vector<float> out(ids.size() * kCols);
  Embed op;
  op.out = make_tensor(out.data(), DType::f32, {static_cast<int64_t>(ids.size()), kCols});
  op.table = {parts, kRows, kCols};
  op.ids = ids;
  run(stream, op);
  for (size_t t = 0; t < ids.size(); ++t) {
    for (int64_t c = 0; c < kCols; ++c) ASSERT_EQ(out[t * kCols + c], static_cast<float>(ids[t] * kCols + c));
  }
}

TEST(GatherRows, CopiesChosenRowsOfAStridedMatrix) {
  ThreadPool pool(2);
  Stream stream(pool);
  std::vector<float> x(4 * 5);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  const std::vector<int32_t> rows = {3, 0, 3};
  std::vector<float> out(rows.size() * 2);
  GatherRows op;
  op.x = make_tensor(x.data(), DType::f32, {4, 5}).cols(1, 2);
  op.out = make_tensor(out.data(), DType::f32, {3, 2});
  op.rows = rows;
  run(stream, op);
  EXPECT_EQ(out, (std::vector<float>{16, 17, 1, 2, 16, 17}));
}

}  // namespace
}  // namespace atom::ops
