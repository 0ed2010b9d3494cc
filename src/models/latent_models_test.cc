// Models with latent attention: what their configs say of rope and of indexers.
#include <gtest/gtest.h>

#include <set>

#include "models/registry.h"

namespace atom {
namespace {

Json glm() {
  return read_json_file(std::filesystem::path(ATOM_TEST_DATA) / "golden" / "glm_moe_dsa_shared" /
                        "config.json");
}

std::set<std::string> declared(const Json& config, ModelTables& tables) {
  make_model(Scope(tables), ConfigReader(config));
  std::set<std::string> names;
  for (const ParamEntry& param : tables.params) {
    for (const Piece& piece : param.pieces) names.insert(piece.any_of.front().name);
  }
  return names;
}

// These lanes exist to rotate; partial_rotary_factor is about other models.
TEST(LatentModels, RotateAllRopeLanesWhateverPartialFactorIsGiven) {
  Json config = glm();
  config["rope_parameters"]["partial_rotary_factor"] = 0.5;
  ModelTables tables;
  declared(config, tables);
  ASSERT_EQ(tables.ropes.size(), 1);
  EXPECT_EQ(tables.ropes[0].rotary_dim, config["qk_rope_head_dim"].get<int>());
}

TEST(LatentModels, OnlyLayersThatOwnAnIndexerAskForItsTensors) {
  ModelTables tables;
  const std::set<std::string> names = declared(glm(), tables);
  for (int layer = 0; layer < 6; ++layer) {
    const std::string indexer = "model.layers." + std::to_string(layer) + ".self_attn.indexer.wq_b.weight";
    EXPECT_EQ(names.contains(indexer), layer < 3) << indexer;
  }
  Json more = glm();
  more["indexer_types"][4] = "full";  // then the checkpoint lacks what the model asks for
  ModelTables other;
  EXPECT_TRUE(declared(more, other).contains("model.layers.4.self_attn.indexer.wq_b.weight"));
}

}  // namespace
}  // namespace atom
