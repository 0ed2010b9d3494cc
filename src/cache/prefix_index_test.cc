// Finding published blocks by token prefix.
#include "cache/prefix_index.h"

#include <gtest/gtest.h>

#include <numeric>

namespace atom {
namespace {

constexpr int64_t kBlock = 4;

std::vector<CacheGroup> paged(int64_t blocks) { return {{.kind = CacheKind::paged, .blocks = blocks}}; }

std::vector<CacheGroup> paged_and_window(int64_t window) {
  return {{.kind = CacheKind::paged, .blocks = 64},
          {.kind = CacheKind::window, .window = window, .blocks = 64}};
}

std::vector<int32_t> iota(int32_t first, int64_t count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Publishes the full blocks of `tokens` with ids first_id, first_id + 1, ... in every group.
void publish(PrefixIndex& index, const std::vector<int32_t>& tokens, BlockId first_id, int groups = 1,
             std::string_view salt = "") {
  NodeId node = index.open(salt);
  for (size_t begin = 0; begin + kBlock <= tokens.size(); begin += kBlock) {
    const std::vector<BlockId> blocks(groups, first_id + static_cast<BlockId>(begin / kBlock));
    node = index.publish(node, std::span(tokens).subspan(begin, kBlock), blocks);
  }
  index.close(node);
}

PrefixIndex::Match match(PrefixIndex& index, const std::vector<int32_t>& tokens, std::string_view salt = "") {
  const NodeId root = index.open(salt);
  const PrefixIndex::Match match = index.match(root, tokens);
  index.close(root);
  return match;
}

TEST(PrefixIndex, FindsTheLongestPublishedPrefix) {
  PrefixIndex index(kBlock, paged(16));
  publish(index, iota(0, 12), 3);
  std::vector<int32_t> tokens = iota(0, 20);
  PrefixIndex::Match found = match(index, tokens);
  EXPECT_EQ(found.blocks, 3);
  EXPECT_EQ(found.stop, ReuseStop::never_seen);
  EXPECT_EQ(index.block(found.node, 0), 5);
  EXPECT_EQ(index.block(index.parent(found.node), 0), 4);

  tokens[5] = 99;
  EXPECT_EQ(match(index, tokens).blocks, 1);
  tokens[0] = 99;
  EXPECT_EQ(match(index, tokens).blocks, 0);
}

TEST(PrefixIndex, AlwaysLeavesATokenToCompute) {
  PrefixIndex index(kBlock, paged(16));
  publish(index, iota(0, 8), 0);
  EXPECT_EQ(match(index, iota(0, 8)).blocks, 1);
  EXPECT_EQ(match(index, iota(0, 8)).stop, ReuseStop::last_token);
  EXPECT_EQ(match(index, iota(0, 9)).blocks, 2);
  EXPECT_EQ(match(index, iota(0, 9)).stop, ReuseStop::partial_block);
  EXPECT_EQ(match(index, iota(0, 4)).blocks, 0);
  EXPECT_EQ(match(index, iota(0, 1)).blocks, 0);
}

TEST(PrefixIndex, KeepsSaltsApart) {
  PrefixIndex index(kBlock, paged(16));
  publish(index, iota(0, 8), 0, 1, "tenant a");
  EXPECT_EQ(match(index, iota(0, 9), "tenant a").blocks, 2);
  EXPECT_EQ(match(index, iota(0, 9), "tenant b").blocks, 0);
}

TEST(PrefixIndex, ForgottenBlocksAreAMissThatIsExplained) {
  PrefixIndex index(kBlock, paged(16));
  publish(index, iota(0, 12), 0);
  index.forget(0, 1);
  EXPECT_EQ(match(index, iota(0, 13)).blocks, 1);
  EXPECT_EQ(match(index, iota(0, 13)).stop, ReuseStop::evicted);  // its child still remembers it
  index.forget(0, 2);
  EXPECT_EQ(match(index, iota(0, 13)).stop, ReuseStop::evicted);  // nothing but a ghost does
  std::vector<int32_t> other = iota(0, 13);
  other[6] = 77;
  EXPECT_EQ(match(index, other).stop, ReuseStop::never_seen);
}

TEST(PrefixIndex, ARepublishedBlockReconnectsItsChildren) {
  PrefixIndex index(kBlock, paged(16));
  publish(index, iota(0, 12), 0);
  index.forget(0, 1);
  publish(index, iota(0, 8), 6);  // block 0 is known, block 7 takes the place of 1
  const PrefixIndex::Match found = match(index, iota(0, 13));
  EXPECT_EQ(found.blocks, 3);
  EXPECT_EQ(index.block(found.node, 0), 2);
  EXPECT_EQ(index.block(index.parent(found.node), 0), 7);
}

TEST(PrefixIndex, TheFirstPublishedBlockStays) {
  PrefixIndex index(kBlock, paged(16));
  publish(index, iota(0, 4), 3);
  publish(index, iota(0, 4), 8);
  EXPECT_EQ(index.block(match(index, iota(0, 5)).node, 0), 3);
  index.forget(0, 8);  // was never recorded
  EXPECT_EQ(match(index, iota(0, 5)).blocks, 1);
}

TEST(PrefixIndex, CollidingHashesNeverGiveAWrongHit) {
  PrefixIndex index(kBlock, paged(64), [](uint64_t, PrefixIndex::Tokens) -> uint64_t { return 7; });
  publish(index, iota(0, 12), 0);
  publish(index, iota(100, 12), 10);
  std::vector<int32_t> mixed = iota(0, 13);  // the first block of one, the second of the other
  std::iota(mixed.begin() + 4, mixed.end(), 104);
  EXPECT_EQ(match(index, mixed).blocks, 1);
  EXPECT_EQ(match(index, iota(0, 13)).blocks, 3);
  const PrefixIndex::Match found = match(index, iota(100, 13));
  EXPECT_EQ(found.blocks, 3);
  EXPECT_EQ(index.block(found.node, 0), 12);
  // A prefix that comes back after eviction is not taken for the other one either.
  for (BlockId id : {0, 1, 2}) index.forget(0, id);
  EXPECT_EQ(match(index, iota(0, 13)).blocks, 0);
  EXPECT_EQ(match(index, iota(100, 13)).blocks, 3);
}

TEST(PrefixIndex, NodesDieWithTheirLastBlockChildAndHolder) {
  PrefixIndex index(kBlock, paged(16));
  publish(index, iota(0, 12), 0);
  EXPECT_EQ(index.nodes(), 4);  // with the root
  index.forget(0, 0);
  index.forget(0, 1);
  EXPECT_EQ(index.nodes(), 4);
  index.forget(0, 2);
  EXPECT_EQ(index.nodes(), 0);

  NodeId node = index.open("");
  node = index.publish(node, iota(0, 4), std::vector<BlockId>{5});
  index.forget(0, 5);
  EXPECT_EQ(index.nodes(), 2);  // a sequence stands there
  index.close(node);
  EXPECT_EQ(index.nodes(), 0);
}

TEST(PrefixIndex, AWindowGroupNeedsOnlyWhatTheNextQuerySees) {
  PrefixIndex index(kBlock, paged_and_window(6));  // the query at 16 sees 11..16: blocks 2 and 3
  publish(index, iota(0, 16), 0, 2);
  for (BlockId id : {0, 1}) index.forget(1, id);
  EXPECT_EQ(match(index, iota(0, 17)).blocks, 4);
  index.forget(1, 2);
  EXPECT_EQ(match(index, iota(0, 17)).blocks, 0);
  EXPECT_EQ(match(index, iota(0, 17)).stop, ReuseStop::evicted);
}

TEST(PrefixIndex, AWindowGroupMayShortenTheHit) {
  PrefixIndex index(kBlock, paged_and_window(5));  // the query at 8 sees 4..8: block 1
  publish(index, iota(0, 16), 0, 2);
  index.forget(1, 3);
  const PrefixIndex::Match found = match(index, iota(0, 17));
  EXPECT_EQ(found.blocks, 3);
  EXPECT_EQ(found.stop, ReuseStop::evicted);
  index.forget(1, 0);
  EXPECT_EQ(match(index, iota(0, 9)).blocks, 2);
  EXPECT_EQ(match(index, iota(0, 5)).blocks, 0);
}

TEST(PrefixIndex, AHoleInAPagedGroupEndsTheHit) {
  PrefixIndex index(kBlock, paged_and_window(5));
  publish(index, iota(0, 16), 0, 2);
  index.forget(0, 1);
  EXPECT_EQ(match(index, iota(0, 17)).blocks, 1);
}

TEST(PrefixIndex, AWindowOfOneNeedsNoEarlierBlock) {
  PrefixIndex index(kBlock, paged_and_window(1));
  publish(index, iota(0, 16), 0, 2);
  for (BlockId id : {0, 1, 2, 3}) index.forget(1, id);
  EXPECT_EQ(match(index, iota(0, 17)).blocks, 4);
}

TEST(PrefixIndexDeathTest, ABlockIsPublishedOnce) {
  PrefixIndex index(kBlock, paged(16));
  publish(index, iota(0, 4), 0);
  EXPECT_DEATH(publish(index, iota(50, 4), 0), "published already");
}

}  // namespace
}  // namespace atom
