// How parameters are cut over ranks.
#include "nn/param.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "nn/scope.h"

namespace atom {
namespace {

Range cut(int64_t full, int64_t unit, int rank, int size) {
  return local_range(full, Shard::by_rows(Axis::attn, unit), rank, size, "w");
}

TEST(LocalRange, DealsUnitsEvenly) {
  EXPECT_EQ(cut(64, 4, 1, 4).begin, 16);
  EXPECT_EQ(cut(64, 4, 1, 4).count, 16);
}

TEST(LocalRange, NeighboursShareAUnitWhenThereAreFewerThanRanks) {
  // 2 key/value heads over 8 ranks: ranks 0-3 hold head 0, ranks 4-7 head 1.
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(cut(2 * 16, 16, rank, 8).begin, rank < 4 ? 0 : 16);
    EXPECT_EQ(cut(2 * 16, 16, rank, 8).count, 16);
  }
}

TEST(LocalRange, RefusesAnUnevenCutByName) {
  try {
    local_range(16, Shard::by_rows(Axis::attn), 0, 3, "q_proj.weight");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("q_proj.weight"), std::string::npos);
  }
}

TEST(LocalRange, RaggedRangesCoverEverythingOnce) {
  Shard shard = Shard::by_rows(Axis::mlp);
  shard.ragged = true;
  int64_t next = 0;
  for (int rank = 0; rank < 3; ++rank) {
    const Range r = local_range(100, shard, rank, 3, "w");
    EXPECT_EQ(r.begin, next);
    next += r.count;
  }
  EXPECT_EQ(next, 100);
}

TEST(StageLayers, ArePartitionedEvenlyOrAsTold) {
  ModelTables tables;
  tables.mesh.stages = 4;
  std::vector<int64_t> counts;
  for (int stage = 0; stage < 4; ++stage) {
    tables.mesh.stage = stage;
    counts.push_back(Scope(tables).stage_layers(10).count);
  }
  EXPECT_EQ(counts, (std::vector<int64_t>{2, 3, 2, 3}));
  tables.stage_partition = {1, 2, 3, 4};
  EXPECT_EQ(Scope(tables).stage_layers(10).begin, 6);
  tables.stage_partition = {1, 2, 3, 5};
  EXPECT_THROW(Scope(tables).stage_layers(10), Error);
}

TEST(Pattern, StarMatchesAnyText) {
  EXPECT_TRUE(matches_pattern("*.rotary_emb.inv_freq", "model.layers.0.self_attn.rotary_emb.inv_freq"));
  EXPECT_TRUE(matches_pattern("a*b*c", "a--b--b--c"));
  EXPECT_FALSE(matches_pattern("a*b", "a--b-"));
  EXPECT_FALSE(matches_pattern("lm_head.weight", "lm_head.weights"));
}

}  // namespace
}  // namespace atom
