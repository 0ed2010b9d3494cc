// State slots and what pays for them.
#include "cache/state_pool.h"

#include <gtest/gtest.h>

namespace atom {
namespace {

TEST(StatePool, HandsOutTheLowestFreeSlot) {
  StatePool pool({.slot_blocks = 2, .slots = 3}, 7);
  EXPECT_EQ(pool.take({6, 1}), 0);
  EXPECT_EQ(pool.take({2, 3}), 1);
  EXPECT_EQ(pool.give_back(0), (std::vector<BlockId>{6, 1}));
  EXPECT_EQ(pool.used_slots(), 1);
  EXPECT_EQ(pool.take({0, 6}), 0);
}

TEST(StatePool, KnowsWhoPaysForWhat) {
  StatePool pool({.slot_blocks = 2, .slots = 3}, 7);
  const SlotId slot = pool.take({6, 1});
  EXPECT_EQ(pool.paid_by(6), slot);
  EXPECT_EQ(pool.paid_by(0), kNoSlot);
  pool.give_back(slot);
  EXPECT_EQ(pool.paid_by(6), kNoSlot);
}

TEST(StatePoolDeathTest, RefusesToBePaidWrongly) {
  StatePool pool({.slot_blocks = 2, .slots = 3}, 7);
  pool.take({0, 1});
  EXPECT_DEATH(pool.take({2}), "pay for a slot");
  EXPECT_DEATH(pool.take({1, 2}), "pays for slot 0");
  EXPECT_DEATH(pool.give_back(2), "free already");
}

}  // namespace
}  // namespace atom
