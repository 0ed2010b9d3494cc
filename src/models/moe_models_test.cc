// The models with routed experts declare what the real checkpoints hold. Needs ATOM_SHARED.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "base/json.h"
#include "models/registry.h"

namespace atom {
namespace {

// Names of all tensors that the config's model reads from a checkpoint with one tensor per expert.
std::set<std::string> declared(const char* config) {
  const std::string path = fmt::format("{}/configs/{}_config.json", std::getenv("ATOM_SHARED"), config);
  const Json json = read_json(path);
  ModelTables tables;
  const auto model = make_model(Scope(tables), ConfigReader(json));
  std::set<std::string> names;
  for (const ParamEntry& param : tables.params) {
    for (const Piece& piece : param.pieces) names.insert(piece.any_of.front().name);
  }
  return names;
}

TEST(MoeModels, DeclareAsManyTensorsAsTheRealCheckpointsHold) {
  if (std::getenv("ATOM_SHARED") == nullptr) GTEST_SKIP() << "needs ATOM_SHARED";
  // Per layer: three matrices of each expert, router, four projections, norms; then embedding, norm, head.
  EXPECT_EQ(declared("mistralai--Mixtral-8x7B-v0.1").size(), 32u * (8 * 3 + 1 + 4 + 2) + 3);
  EXPECT_EQ(declared("mistralai--Mixtral-8x22B-v0.1").size(), 56u * (8 * 3 + 1 + 4 + 2) + 3);
  const std::set<std::string> qwen = declared("Qwen--Qwen3-30B-A3B");
  EXPECT_EQ(qwen.size(), 48u * (128 * 3 + 1 + 4 + 4) + 3);
  EXPECT_TRUE(qwen.contains("model.layers.47.mlp.experts.127.down_proj.weight"));
}

}  // namespace
}  // namespace atom
