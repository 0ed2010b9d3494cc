#include "checkpoint/name_patterns.h"

#include <gtest/gtest.h>

#include "checkpoint/test_folder.h"

namespace atom {
namespace {

TEST(NamePatterns, NamesModulesThatContainAndLastComponentsMatch) {
  const NamePatterns names({"lm_head", "model.layers.1", "self_attn.q_proj", "gate"}, "config");
  EXPECT_TRUE(names.match("lm_head"));
  EXPECT_TRUE(names.match("model.layers.1"));
  EXPECT_TRUE(names.match("model.layers.1.mlp.down_proj"));
  EXPECT_TRUE(names.match("model.layers.7.self_attn.q_proj"));
  EXPECT_TRUE(names.match("model.layers.7.mlp.gate"));
}

TEST(NamePatterns, NothingMatchesInsideAComponent) {
  const NamePatterns names({"lm_head", "model.layers.1", "q_proj", "gate"}, "config");
  EXPECT_FALSE(names.match("model.layers.10.mlp.down_proj"));
  EXPECT_FALSE(names.match("model.layers.11"));
  EXPECT_FALSE(names.match("model.layers.0.mlp.gate_proj"));
  EXPECT_FALSE(names.match("model.layers.0.mlp.shared_expert_gate"));
  EXPECT_FALSE(names.match("model.layers.0.self_attn.qq_proj"));
  EXPECT_FALSE(names.match("model"));
}

TEST(NamePatterns, GlobsMatchNamesAndModulesThatContain) {
  const NamePatterns names({"model.layers.*.self_attn", "model.layers.3*"}, "config");
  EXPECT_TRUE(names.match("model.layers.12.self_attn"));
  EXPECT_TRUE(names.match("model.layers.12.self_attn.o_proj"));
  EXPECT_TRUE(names.match("model.layers.3.mlp.up_proj"));
  EXPECT_FALSE(names.match("model.layers.12.mlp.experts.gate_up_proj"));
  EXPECT_FALSE(names.match("self_attn.o_proj"));
}

TEST(NamePatterns, RegularExpressionsMatchFromTheBeginning) {
  const NamePatterns names({"re:.*self_attn.*", "re:lm_", "re:.*mlp\\.(gate|up)_proj"}, "config");
  EXPECT_TRUE(names.match("model.layers.0.self_attn.q_proj"));
  EXPECT_TRUE(names.match("lm_head"));
  EXPECT_TRUE(names.match("model.layers.0.mlp.up_proj"));
  EXPECT_FALSE(names.match("model.lm_head"));
  EXPECT_FALSE(names.match("model.layers.0.mlp.down_proj"));
  EXPECT_ERROR(NamePatterns({"re:("}, "config.json: quantization_config"),
               "config.json: quantization_config: re:(");
}

TEST(NamePatterns, NoneMatchesNothing) {
  EXPECT_TRUE(NamePatterns().empty());
  EXPECT_FALSE(NamePatterns().match("lm_head"));
  EXPECT_FALSE(NamePatterns({}, "config").match(""));
}

}  // namespace
}  // namespace atom
