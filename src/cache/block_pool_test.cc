// Block ids of one group.
#include "cache/block_pool.h"

#include <gtest/gtest.h>

namespace atom {
namespace {

TEST(BlockPool, HandsOutVacantBlocksLowestFirst) {
  BlockPool pool(4);
  for (BlockId id = 0; id < 4; ++id) EXPECT_EQ(pool.allocate().id, id);
  EXPECT_EQ(pool.allocate().id, kNoBlock);
  pool.release(2);
  pool.release(0);
  EXPECT_EQ(pool.allocate().id, 0);
  EXPECT_EQ(pool.allocate().id, 2);
}

TEST(BlockPool, FreesABlockWithItsLastHolder) {
  BlockPool pool(1);
  const BlockId id = pool.allocate().id;
  pool.retain(id);
  pool.release(id);
  EXPECT_EQ(pool.free_blocks(), 0);
  pool.release(id);
  EXPECT_EQ(pool.free_blocks(), 1);
}

TEST(BlockPool, EvictsCachedBlocksOnlyWhenNoneIsVacantAndLeastRecentlyFreedFirst) {
  BlockPool pool(4);
  for (int i = 0; i < 4; ++i) pool.allocate();
  for (BlockId id : {0, 1, 2}) pool.set_cached(id, true);
  for (BlockId id : {1, 0, 3, 2}) pool.release(id);
  EXPECT_EQ(pool.free_blocks(), 4);
  EXPECT_EQ(pool.cached_free_blocks(), 3);

  EXPECT_EQ(pool.allocate().id, 3);  // vacant
  for (BlockId expected : {1, 0, 2}) {
    const BlockPool::Allocation block = pool.allocate();
    EXPECT_EQ(block.id, expected);
    EXPECT_TRUE(block.evicted);
    EXPECT_FALSE(pool.is_cached(block.id));
  }
}

TEST(BlockPool, AHitTakesACachedBlockFromTheFreeOnes) {
  BlockPool pool(3);
  for (int i = 0; i < 3; ++i) pool.set_cached(pool.allocate().id, true);
  for (BlockId id : {0, 1, 2}) pool.release(id);
  pool.retain(1);  // from the middle of the list
  EXPECT_EQ(pool.free_blocks(), 2);
  EXPECT_EQ(pool.ref_count(1), 1);
  EXPECT_EQ(pool.allocate().id, 0);
  EXPECT_EQ(pool.allocate().id, 2);
  EXPECT_EQ(pool.allocate().id, kNoBlock);
  pool.release(1);
  EXPECT_EQ(pool.allocate().id, 1);
}

TEST(BlockPool, ABlockThatIsNoLongerCachedBecomesVacant) {
  BlockPool pool(2);
  pool.set_cached(pool.allocate().id, true);
  pool.set_cached(0, false);
  pool.release(0);
  EXPECT_EQ(pool.cached_free_blocks(), 0);
  EXPECT_FALSE(pool.allocate().evicted);
}

TEST(BlockPoolDeathTest, MisuseIsCaught) {
  BlockPool pool(2);
  EXPECT_DEATH(pool.release(0), "free already");
  EXPECT_DEATH(pool.retain(0), "vacant");
  EXPECT_DEATH(pool.set_cached(0, true), "is free");
  EXPECT_DEATH(pool.release(2), "block 2 of 2");
}

}  // namespace
}  // namespace atom
