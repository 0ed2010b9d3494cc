// Rope settings: every spelling gives one struct, contradictions are refused.
#include "checkpoint/rope_config.h"

#include "checkpoint/test_folder.h"

namespace atom {
namespace {

RopeConfig rope(const char* text, int64_t head_dim = 64, RopeDefaults defaults = {},
                std::string_view layer_type = {}) {
  const Json config = parse_json(text, "test");
  return parse_rope(ConfigReader(config), head_dim, defaults, layer_type);
}

TEST(Rope, FiveSpellingsOfOneYarnAgree) {
  const RopeConfig a = rope(
      R"({"rope_theta": 5e5, "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64}})");
  EXPECT_EQ(a.type, RopeType::yarn);
  EXPECT_EQ(a.theta, 5e5);
  EXPECT_EQ(a.factor, 4);
  EXPECT_EQ(a.original_max_position_embeddings, 64);
  EXPECT_EQ(a.beta_fast, 32);
  EXPECT_EQ(a.beta_slow, 1);
  EXPECT_TRUE(a.truncate);
  EXPECT_EQ(a.rotary_dim, 64);
  EXPECT_EQ(
      a,
      rope(
          R"({"rope_theta": 500000, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}})"));
  EXPECT_EQ(
      a,
      rope(
          R"({"rope_theta": 5e5, "rope_scaling": {"type": "yarn", "rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64}})"));
  EXPECT_EQ(
      a,
      rope(
          R"({"rope_parameters": {"rope_theta": 5e5, "rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64}})"));
  EXPECT_EQ(
      a,
      rope(
          R"({"rope_theta": 5e5, "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64},
                        "rope_parameters": {"rope_theta": 5e5, "rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 64}})"));
}

TEST(Rope, NullOrEmptyScalingIsPlain) {
  for (const char* text :
       {R"({"rope_theta": 5e5, "rope_scaling": null})", R"({"rope_theta": 5e5})",
        R"({"rope_theta": 5e5, "rope_scaling": {}})", R"({"rope_parameters": {"rope_theta": 5e5}})",
        R"({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})"}) {
    const RopeConfig plain = rope(text);
    EXPECT_EQ(plain.type, RopeType::plain) << text;
    EXPECT_EQ(plain.theta, 5e5) << text;
  }
}

TEST(Rope, ContradictionsNameBothPlaces) {
  EXPECT_ERROR(
      rope(R"({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 4}})"),
      "rope_scaling.type is \"linear\" but rope_scaling.rope_type is \"yarn\"");
  EXPECT_ERROR(rope(R"({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}})"),
               "rope_parameters.rope_theta is 500000.0 but rope_theta is 10000.0");
  EXPECT_ERROR(
      rope(
          R"({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "linear", "factor": 4}})"),
      "rope_parameters.factor is 4 but rope_scaling.factor is 2");
  EXPECT_ERROR(rope(R"({"rope_theta": 1e4, "partial_rotary_factor": 0.5, "rotary_dim": 16})"),
               "rotary_dim: 16");
}

TEST(Rope, DynamicNeedsMoreThanOnePair) {
  const char* text =
      R"({"rope_theta": 1e4, "max_position_embeddings": 64, "rope_scaling": {"rope_type": "dynamic", "factor": 2}})";
  EXPECT_EQ(rope(text, 4).type, RopeType::dynamic);
  EXPECT_ERROR(rope(text, 2), "dynamic needs more than two rotating lanes");
}

TEST(Rope, UnknownTypesAreRefused) {
  EXPECT_ERROR(rope(R"({"rope_theta": 1e4, "rope_scaling": {"rope_type": "foo", "factor": 2}})"),
               "rope_type: \"foo\" is not supported");
  EXPECT_ERROR(rope(R"({"rope_theta": 1e4, "rope_scaling": {"type": "longrope", "factor": 2}})"), "longrope");
  EXPECT_ERROR(rope(R"({"rope_theta": 1e4, "rope_scaling": {"factor": 2}})"), "rope_type: missing");
  EXPECT_ERROR(rope(R"({"rope_theta": 1e4, "rope_scaling": "yarn"})"), "rope_scaling: not an object");
}

TEST(Rope, AbsentThetaIsTheArchitecturesDefaultOrAnError) {
  EXPECT_ERROR(rope(R"({"rope_parameters": {"rope_type": "default"}})"), "rope_theta: missing");
  EXPECT_EQ(rope("{}", 64, {.theta = 10000.0}).theta, 10000.0);
  EXPECT_EQ(rope(R"({"rope_theta": null})", 64, {.theta = 10000.0}).theta, 10000.0);
  EXPECT_EQ(rope(R"({"rope_theta": 7e6})", 64, {.theta = 10000.0}).theta, 7e6);
}

TEST(Rope, ReadsLlama3) {
  const RopeConfig r = rope(
      R"({"rope_theta": 500000.0, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}})");
  EXPECT_EQ(r.type, RopeType::llama3);
  EXPECT_EQ(r.factor, 8);
  EXPECT_EQ(r.original_max_position_embeddings, 8192);
  EXPECT_EQ(r.high_freq_factor, 4);
  EXPECT_ERROR(
      rope(
          R"({"rope_theta": 5e5, "max_position_embeddings": 8192, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"}})"),
      "original_max_position_embeddings: this key is required");
  EXPECT_ERROR(
      rope(
          R"({"rope_theta": 5e5, "rope_scaling": {"factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}})"),
      "high_freq_factor: 1 is not between 4");
}

TEST(Rope, ReadsLinearAndDynamic) {
  const RopeConfig linear = rope(R"({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2}})");
  EXPECT_EQ(linear.type, RopeType::linear);
  EXPECT_EQ(linear.original_max_position_embeddings, 0);
  const RopeConfig dynamic = rope(
      R"({"rope_theta": 1e4, "max_position_embeddings": 2048, "rope_scaling": {"type": "dynamic", "factor": 2}})");
  EXPECT_EQ(dynamic.type, RopeType::dynamic);
  EXPECT_EQ(dynamic.original_max_position_embeddings, 2048);
  EXPECT_ERROR(rope(R"({"rope_theta": 1e4, "rope_scaling": {"type": "linear"}})"),
               "factor: this key is required");
  EXPECT_ERROR(rope(R"({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 0}})"), "factor: 0");
}

TEST(Rope, YarnWithoutFactorStretchesToTheConfiguredLength) {
  EXPECT_EQ(
      rope(
          R"({"rope_theta": 1e4, "max_position_embeddings": 256, "rope_scaling": {"type": "yarn", "original_max_position_embeddings": 64}})")
          .factor,
      4);
}

TEST(Rope, OriginalLengthMayStandOutside) {
  const char* outside =
      R"({"rope_theta": 1e4, "max_position_embeddings": 256, "original_max_position_embeddings": 64, "rope_scaling": {"type": "yarn", "factor": 4}})";
  EXPECT_EQ(rope(outside).original_max_position_embeddings, 64);
  EXPECT_ERROR(
      rope(
          R"({"rope_theta": 1e4, "original_max_position_embeddings": 32, "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64}})"),
      "rope_scaling.original_max_position_embeddings is 64 but original_max_position_embeddings is 32");
}

TEST(Rope, PartialRotationUnderItsThreeSpellings) {
  EXPECT_EQ(rope(R"({"rope_theta": 1e4, "partial_rotary_factor": 0.25})", 256).rotary_dim, 64);
  EXPECT_EQ(
      rope(R"({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.25}})", 256).rotary_dim, 64);
  const RopeConfig by_dim = rope(R"({"rope_theta": 1e4, "rotary_dim": 64})", 128);
  EXPECT_EQ(by_dim.rotary_dim, 64);
  EXPECT_EQ(by_dim.partial_rotary_factor, 0.5);
  EXPECT_EQ(rope("{}", 128, {.theta = 1e4, .partial_rotary_factor = 0.5}).rotary_dim, 64);
  EXPECT_ERROR(rope(R"({"rope_theta": 1e4, "partial_rotary_factor": 0.3})", 10), "an even number");
  EXPECT_ERROR(rope(R"({"rope_theta": 1e4, "partial_rotary_factor": 1.5})"), "partial_rotary_factor: 1.5");
  EXPECT_ERROR(rope(R"({"rope_theta": 1e4, "rotary_dim": 66})"), "rotary_dim: 66");
}

TEST(Rope, PicksTheSettingsOfALayerType) {
  constexpr const char* kNested =
      R"({"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2, "rope_theta": 1e6, "original_max_position_embeddings": 64},
                              "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}})";
  EXPECT_EQ(rope(kNested, 64, {}, "full_attention").type, RopeType::yarn);
  EXPECT_EQ(rope(kNested, 64, {}, "sliding_attention").theta, 1e4);
  EXPECT_EQ(
      rope(
          R"({"rope_theta": 5, "rope_parameters": {"full_attention": {"rope_theta": 1e6}, "none": null, "sliding_attention": {}}})",
          64, {}, "sliding_attention")
          .theta,
      5);
  EXPECT_EQ(
      rope(R"({"rope_theta": 5, "rope_parameters": {"full_attention": {"rope_theta": 1e6}, "none": null}})",
           64, {}, "full_attention")
          .theta,
      1e6);
  EXPECT_ERROR(rope(kNested, 64, {}, "chunked"), "nothing for layer type chunked");
  EXPECT_ERROR(rope(kNested), "differs by layer type");
  EXPECT_EQ(
      rope(R"({"rope_parameters": {"full_attention": {"rope_theta": 1e6}, "x": {"rope_theta": 1e6}}})").theta,
      1e6);
}

TEST(Rope, SectionsMustAddUp) {
  const char* good =
      R"({"rope_parameters": {"rope_theta": 1e7, "rope_type": "default", "mrope_section": [11, 11, 10], "mrope_interleaved": true, "partial_rotary_factor": 0.25}})";
  EXPECT_EQ(rope(good, 256).mrope_section, (std::vector<int64_t>{11, 11, 10}));
  EXPECT_TRUE(rope(good, 256).mrope_interleaved);
  EXPECT_ERROR(rope(good, 128), "mrope_section: adds up to 32, not 16");
  EXPECT_EQ(
      rope(
          R"({"rope_theta": 1e6, "rope_scaling": {"type": "mrope", "rope_type": "default", "mrope_section": [16, 8, 8]}})")
          .type,
      RopeType::plain);
}

}  // namespace
}  // namespace atom
