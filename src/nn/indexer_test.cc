// The schedule of layers that own an indexer.
#include "nn/indexer.h"

#include <gtest/gtest.h>

namespace atom::nn {
namespace {

std::vector<int64_t> owners(const Json& config, int64_t layers) {
  std::vector<int64_t> found;
  const std::vector<bool> owner = index_owners(ConfigReader(config), layers);
  for (int64_t i = 0; i < layers; ++i) {
    if (owner[i]) found.push_back(i);
  }
  return found;
}

// GLM-5.2: 0, 1, 2, then every fourth layer from 6 to 74.
std::vector<int64_t> glm52() {
  std::vector<int64_t> layers = {0, 1, 2};
  for (int64_t i = 6; i <= 74; i += 4) layers.push_back(i);
  return layers;
}

TEST(IndexOwners, FrequencyAndOffsetGiveTheTableOfGlm52) {
  const std::vector<int64_t> found = owners({{"index_topk_freq", 4}, {"index_skip_topk_offset", 3}}, 78);
  EXPECT_EQ(found, glm52());
  EXPECT_EQ(found.size(), 21u);
}

TEST(IndexOwners, TheListOutranksThePatternAndThePatternTheFrequency) {
  const Json frequency = {{"index_topk_freq", 4}, {"index_skip_topk_offset", 3}};
  Json pattern = frequency;
  pattern["index_topk_pattern"] = "FSFS";
  EXPECT_EQ(owners(pattern, 4), (std::vector<int64_t>{0, 2}));
  Json list = pattern;
  list["indexer_types"] = {"full", "full", "shared", "shared"};
  EXPECT_EQ(owners(list, 4), (std::vector<int64_t>{0, 1}));
}

TEST(IndexOwners, WithoutAnyKeyEveryLayerIsOne) {
  EXPECT_EQ(owners(Json::object(), 3), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(owners({{"indexer_types", nullptr}, {"index_topk_pattern", nullptr}}, 2),
            (std::vector<int64_t>{0, 1}));
}

TEST(IndexOwners, RefusesSchedulesThatCannotBeServed) {
  EXPECT_THROW(owners({{"indexer_types", {"shared", "full"}}}, 2), Error);
  EXPECT_THROW(owners({{"indexer_types", {"full", "full"}}}, 3), Error);
  EXPECT_THROW(owners({{"indexer_types", {"full", "half"}}}, 2), Error);
  EXPECT_THROW(owners({{"index_topk_pattern", "SF"}}, 2), Error);
}

}  // namespace
}  // namespace atom::nn
