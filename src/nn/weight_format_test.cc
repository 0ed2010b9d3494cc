// Which tensors a quantised matrix may consist of, by the quantization_config of published checkpoints.
#include "nn/weight_format.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "checkpoint/test_folder.h"

namespace atom {
namespace {

using testing::error_of;

std::shared_ptr<const WeightFormat> format_of(const Json& quantization) {
  return make_weight_format(ConfigReader(quantization, "config.json: quantization_config"));
}

std::vector<Source> sources_of(const WeightFormat& format, const std::string& tensor, int64_t index = -1) {
  Source plain{tensor, index};
  plain.transposed = index >= 0;
  plain.step = index >= 0 ? 1 : 0;
  Piece piece{{plain}, 64, 64, {}};
  format.apply(piece);
  return piece.any_of;
}

bool has_scales(const WeightFormat& format, const std::string& module) {
  return sources_of(format, module + ".weight").front().scale.has_value();
}

const Json kDeepSeek = {{"activation_scheme", "dynamic"},
                        {"fmt", "e4m3"},
                        {"quant_method", "fp8"},
                        {"weight_block_size", {128, 128}}};

Json with(Json json, const Json& more) {
  json.update(more);
  return json;
}

TEST(Fp8Format, EveryMatrixMayHaveScalesInBlocks) {
  const auto format = format_of(kDeepSeek);
  const std::vector<Source> sources = sources_of(*format, "model.layers.3.mlp.experts.7.up_proj.weight");
  ASSERT_EQ(sources.size(), 1u);
  EXPECT_EQ(sources[0].name, "model.layers.3.mlp.experts.7.up_proj.weight");
  ASSERT_TRUE(sources[0].scale);
  EXPECT_EQ(sources[0].scale->any_of[0], "model.layers.3.mlp.experts.7.up_proj.weight_scale_inv");
  EXPECT_EQ(sources[0].scale->any_of[1], "model.layers.3.mlp.experts.7.up_proj.weight_scale");
  EXPECT_EQ(sources[0].scale->block_rows, 128);
  EXPECT_EQ(sources[0].scale->block_cols, 128);
  EXPECT_EQ(sources_of(*format, "model.layers.3.mlp.experts.gate_up_proj", 2)[0].scale->any_of[0],
            "model.layers.3.mlp.experts.gate_up_proj_scale_inv");
}

TEST(Fp8Format, DummyWeightsLeavePlainWhatPublishersDo) {
  const auto format = format_of(kDeepSeek);
  for (const char* plain :
       {"lm_head.weight", "model.embed_tokens.weight", "model.layers.4.mlp.gate.weight",
        "model.layers.4.self_attn.indexer.weights_proj.weight", "model.layers.61.shared_head.head.weight"}) {
    EXPECT_FALSE(sources_of(*format, plain)[0].usual_type) << plain;
  }
  EXPECT_EQ(sources_of(*format, "model.layers.4.mlp.gate_proj.weight")[0].usual_type, DType::f8e4m3);
}

// Excerpts of GLM-5.2-FP8's 541 names; the whole list is tried where the configs are at hand.
TEST(Fp8Format, ExcludedModulesStayPlainAlsoUnderAnotherName) {
  const auto format = format_of(
      with(kDeepSeek, {{"modules_to_not_convert",
                        {"model.layers.1.post_attention_layernorm",
                         "model.layers.1.mlp.gate.e_score_correction_bias", "model.layers.1.mlp.gate",
                         "model.layers.1.self_attn.indexers_proj", "lm_head", "model.embed_tokens"}}}));
  EXPECT_FALSE(has_scales(*format, "lm_head"));
  EXPECT_FALSE(has_scales(*format, "model.embed_tokens"));
  EXPECT_FALSE(has_scales(*format, "model.layers.1.mlp.gate"));
  EXPECT_FALSE(has_scales(*format, "model.layers.1.self_attn.indexer.weights_proj"));
  EXPECT_TRUE(has_scales(*format, "model.layers.1.self_attn.indexer.wk"));
  EXPECT_TRUE(has_scales(*format, "model.layers.1.mlp.gate_proj"));
  EXPECT_TRUE(has_scales(*format, "model.layers.11.mlp.gate"));
  EXPECT_TRUE(has_scales(*format, "model.layers.11.self_attn.indexer.weights_proj"));
}

TEST(Fp8Format, ListsOfPublishedConfigsAreUnderstood) {
  const std::string shared = testing::shared_folder();
  if (shared.empty()) GTEST_SKIP() << "ATOM_SHARED is not set";
  const auto read = [&](const std::string& name) {
    return Json::parse(read_file(shared + "/configs/" + name + "_config.json", 1 << 20))
        .at("quantization_config");
  };
  const auto glm = format_of(read("zai-org--GLM-5.2-FP8"));
  for (const int layer : {0, 1, 2, 6, 74, 78}) {
    const std::string attention = "model.layers." + std::to_string(layer) + ".self_attn";
    EXPECT_FALSE(has_scales(*glm, attention + ".indexer.weights_proj")) << layer;
    EXPECT_TRUE(has_scales(*glm, attention + ".indexer.wq_b")) << layer;
    EXPECT_TRUE(has_scales(*glm, attention + ".q_a_proj")) << layer;
  }
  EXPECT_FALSE(has_scales(*glm, "model.layers.78.eh_proj"));
  EXPECT_FALSE(has_scales(*glm, "model.layers.9.mlp.gate"));
  EXPECT_TRUE(has_scales(*glm, "model.layers.9.mlp.experts.255.gate_proj"));
  const auto qwen = format_of(read("Qwen--Qwen3-30B-A3B-FP8"));
  EXPECT_FALSE(has_scales(*qwen, "model.layers.47.mlp.gate"));
  EXPECT_TRUE(has_scales(*qwen, "model.layers.47.mlp.experts.0.gate_proj"));
  const auto minimax = format_of(read("MiniMaxAI--MiniMax-M2.5"));
  EXPECT_FALSE(has_scales(*minimax, "model.layers.4.block_sparse_moe.gate"));
  const auto oss = format_of(read("openai--gpt-oss-120b"));
  EXPECT_FALSE(has_scales(*oss, "model.layers.4.self_attn.q_proj"));
  EXPECT_EQ(sources_of(*oss, "model.layers.4.mlp.experts.down_proj", 1).size(), 2u);
  for (const char* name :
       {"Qwen--Qwen3-32B-FP8", "Qwen--Qwen3-32B-FP8-Static-PerTensor", "deepseek-ai--DeepSeek-V3.2",
        "moonshotai--Kimi-K2-Instruct", "zai-org--GLM-5-FP8", "Qwen--Qwen3-235B-A22B-FP8"}) {
    EXPECT_TRUE(has_scales(*format_of(read(name)), "model.layers.5.self_attn.o_proj")) << name;
  }
  EXPECT_ERROR(format_of(read("nvidia--GLM-5.2-NVFP4")), "NVFP4");
}

TEST(Fp8Format, CompressedTensorsAndModelOptSayTheSameInGroups) {
  const Json weights = {
      {"num_bits", 8}, {"type", "float"}, {"strategy", "block"}, {"block_structure", {64, 32}}};
  const Json config = {{"quant_method", "compressed-tensors"},
                       {"ignore", {"lm_head", "re:.*shared_experts.*"}},
                       {"config_groups", {{"group_0", {{"weights", weights}, {"targets", {"Linear"}}}}}}};
  const auto format = format_of(config);
  const Source source = sources_of(*format, "model.layers.0.mlp.down_proj.weight")[0];
  EXPECT_EQ(source.scale->block_rows, 64);
  EXPECT_EQ(source.scale->block_cols, 32);
  EXPECT_FALSE(has_scales(*format, "model.layers.0.mlp.shared_experts.up_proj"));

  const auto channel = format_of(with(
      config, {{"config_groups", {{"group_0", {{"weights", with(weights, {{"strategy", "channel"}})}}}}}}));
  EXPECT_EQ(sources_of(*channel, "a.weight")[0].scale->block_rows, 0);
  const auto modelopt = format_of({{"quant_algo", "FP8"}, {"exclude_modules", {"lm_head"}}});
  EXPECT_TRUE(has_scales(*modelopt, "model.layers.0.mlp.down_proj"));
  EXPECT_FALSE(has_scales(*modelopt, "lm_head"));
}

TEST(Mxfp4Format, StackedExpertsMayBeBlocksAndScales) {
  const auto format =
      format_of({{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"model.layers.*.self_attn"}}});
  const std::vector<Source> sources = sources_of(*format, "model.layers.0.mlp.experts.gate_up_proj", 3);
  ASSERT_EQ(sources.size(), 2u);
  EXPECT_EQ(sources[0].name, "model.layers.0.mlp.experts.gate_up_proj_blocks");
  EXPECT_EQ(sources[0].scale->any_of[0], "model.layers.0.mlp.experts.gate_up_proj_scales");
  EXPECT_EQ(sources[0].index, 3);
  EXPECT_FALSE(sources[0].transposed);
  EXPECT_EQ(sources[0].nibble_group, 32);
  EXPECT_EQ(sources[1].name, "model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_TRUE(sources[1].transposed);
  EXPECT_EQ(sources_of(*format, "model.layers.0.mlp.router.weight").size(), 1u);
}

Json packed_mxfp4(const Json& weights = Json::object()) {
  const Json mxfp4 = {{"num_bits", 4}, {"type", "float"}, {"strategy", "group"}, {"group_size", 32}};
  return {{"quant_method", "compressed-tensors"},
          {"format", "mxfp4-pack-quantized"},
          {"ignore", {"lm_head", "re:.*mlp.gate$"}},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", with(mxfp4, weights)}}}}}};
}

TEST(CompressedMxfp4, EveryLinearIsPackedOrPlain) {
  const auto format = format_of(packed_mxfp4({{"symmetric", true}, {"scale_dtype", "torch.uint8"}}));
  const std::string name = "model.layers.2.mlp.experts.7.up_proj.weight";
  const std::vector<Source> sources = sources_of(*format, name);
  ASSERT_EQ(sources.size(), 2u);
  EXPECT_EQ(sources[0].name, name + "_packed");
  EXPECT_EQ(sources[0].nibble_group, 32);
  EXPECT_FALSE(sources[0].nibbles_in_groups);
  EXPECT_EQ(sources[0].scale->any_of, std::vector<std::string>{name + "_scale"});
  EXPECT_EQ(sources[0].scale->block_rows, 1);
  EXPECT_EQ(sources[0].scale->block_cols, 32);
  EXPECT_EQ(sources[0].usual_type, DType::f4e2m1x2);
  EXPECT_EQ(sources[1].name, name);
  EXPECT_FALSE(has_scales(*format, "lm_head"));
  EXPECT_FALSE(has_scales(*format, "model.layers.2.mlp.gate"));
  EXPECT_FALSE(sources_of(*format, "model.embed_tokens.weight")[0].usual_type);
  EXPECT_EQ(sources_of(*format, "model.layers.2.mlp.experts.gate_up_proj", 1).size(), 1u);
}

const Json kQuarkMxfp4 = {{"dtype", "fp4"}, {"qscheme", "per_group"}, {"group_size", 32},
                          {"ch_axis", -1},  {"is_dynamic", false},    {"scale_format", "e8m0"}};
const Json kQuarkFp8 = {{"dtype", "fp8_e4m3"}, {"qscheme", "per_tensor"}, {"ch_axis", nullptr}};

Json quark_modules(const Json& weight) {
  return {{"weight", weight}, {"bias", nullptr}, {"input_tensors", weight}, {"output_tensors", nullptr}};
}
Json quark(const Json& weight, const Json& more = Json::object()) {
  return with({{"quant_method", "quark"},
               {"quant_mode", "eager_mode"},
               {"algo_config", nullptr},
               {"exclude", {"lm_head", "*mlp.gate", "re:model\\.layers\\.9\\..*"}},
               {"export", {{"pack_method", "reorder"}, {"weight_format", "real_quantized"}}},
               {"global_quant_config", quark_modules(weight)},
               {"layer_quant_config", Json::object()},
               {"layer_type_quant_config", Json::object()}},
              more);
}

TEST(QuarkFormat, StoresMxfp4UnderTheNameOfTheWeight) {
  const auto format = format_of(quark(kQuarkMxfp4));
  const std::string name = "model.layers.3.mlp.experts.0.gate_proj.weight";
  const std::vector<Source> sources = sources_of(*format, name);
  ASSERT_EQ(sources.size(), 2u);
  EXPECT_EQ(sources[0].name, name);
  EXPECT_EQ(sources[0].nibble_group, 32);
  EXPECT_EQ(sources[0].scale->any_of, std::vector<std::string>{name + "_scale"});
  EXPECT_EQ(sources[0].usual_type, DType::f4e2m1x2);
  EXPECT_EQ(sources[1].name, name);
  EXPECT_EQ(sources[1].nibble_group, 0);
  for (const char* plain : {"lm_head", "model.layers.3.mlp.gate", "model.layers.9.mlp.up_proj"}) {
    EXPECT_FALSE(has_scales(*format, plain)) << plain;
  }
}

TEST(QuarkFormat, NamesMayBeStoredInAnotherWayThanTheRest) {
  const Json rows = with(kQuarkFp8, {{"qscheme", "per_channel"}, {"ch_axis", 0}});
  const auto format =
      format_of(quark(kQuarkMxfp4, {{"layer_quant_config",
                                     {{"*self_attn*", quark_modules(rows)},
                                      {"*down_proj", quark_modules(nullptr)},
                                      {"*.8.mlp.up_proj", nullptr},
                                      {"*layers.7.self_attn.q_proj", quark_modules(kQuarkMxfp4)},
                                      {"re:.*kv_b_proj", quark_modules(kQuarkMxfp4)}}}}));
  const auto types = [&](const std::string& module) {
    std::vector<std::optional<DType>> usual;
    for (const Source& s : sources_of(*format, module + ".weight")) usual.push_back(s.usual_type);
    return usual;
  };
  using Types = std::vector<std::optional<DType>>;
  EXPECT_EQ(types("model.layers.0.mlp.up_proj"), (Types{DType::f4e2m1x2, std::nullopt}));
  EXPECT_EQ(types("model.layers.0.self_attn.o_proj"), (Types{DType::f8e4m3}));
  EXPECT_EQ(types("model.layers.0.mlp.down_proj"), (Types{std::nullopt}));
  EXPECT_EQ(types("model.layers.8.mlp.up_proj"), (Types{std::nullopt}));
  // Two patterns: what is stored decides.
  EXPECT_EQ(types("model.layers.7.self_attn.q_proj"), (Types{DType::f4e2m1x2, DType::f8e4m3}));
  const Source fp8 = sources_of(*format, "model.layers.0.self_attn.o_proj.weight")[0];
  EXPECT_EQ(fp8.scale->block_rows, 0);
  EXPECT_EQ(fp8.scale->any_of[0], "model.layers.0.self_attn.o_proj.weight_scale");
}

TEST(QuarkFormat, WhatIsNotSupportedIsRefusedByName) {
  const auto refused = [](const Json& config) {
    const std::string message = error_of([&] { format_of(config); });
    EXPECT_NE(message.find("use a checkpoint"), std::string::npos) << message;
    return message;
  };
  for (const char* type : {"int8", "int4", "uint4", "fp6_e2m3", "fp6_e3m2", "mx9"}) {
    EXPECT_NE(refused(quark({{"dtype", type}}))
                  .find("weight: dtype: weights stored as AMD Quark \"" + std::string(type)),
              std::string::npos);
  }
  EXPECT_ERROR(format_of(quark(with(kQuarkFp8, {{"qscheme", "per_group"}, {"group_size", 32}}))),
               "\"fp8_e4m3\" \"per_group\"");
  EXPECT_ERROR(format_of(quark(with(kQuarkFp8, {{"qscheme", "per_channel"}, {"ch_axis", 1}}))), "of columns");
  EXPECT_ERROR(format_of(quark(with(kQuarkMxfp4, {{"group_size", 16}}))), "of 16");
  EXPECT_ERROR(format_of(quark(with(kQuarkMxfp4, {{"scale_format", "float8_e4m3"}}))), "float8_e4m3");
  EXPECT_ERROR(format_of(quark({kQuarkFp8, {{"dtype", "int4"}}})), "in several steps");
  EXPECT_ERROR(format_of(quark(kQuarkFp8, {{"export", {{"weight_format", "fake_quantized"}}}})),
               "\"fake_quantized\"");
  EXPECT_ERROR(format_of(quark(kQuarkFp8, {{"global_quant_config", {{"bias", kQuarkFp8}}}})), "biases");
  // By the type of a module, unless that says what the global config says.
  EXPECT_ERROR(
      format_of(quark(kQuarkFp8, {{"layer_type_quant_config", {{"Linear", quark_modules(kQuarkMxfp4)}}}})),
      "layer_type_quant_config: Linear");
  format_of(quark(kQuarkFp8, {{"layer_type_quant_config", {{"Linear", quark_modules(kQuarkFp8)}}}}));
  EXPECT_ERROR(format_of(quark(kQuarkFp8, {{"layer_quant_config", {{"*.[kv]_proj", nullptr}}}})),
               "*.[kv]_proj");
  EXPECT_ERROR(format_of({{"quant_method", "quark"}}), "global_quant_config: missing");
}

TEST(WeightFormat, WhatIsNotSupportedIsRefusedByNameWithTheRemedy) {
  const std::pair<Json, std::string> refused[] = {
      {{{"quant_method", "awq"}, {"bits", 4}}, "AWQ"},
      {{{"quant_method", "gptq"}}, "GPTQ"},
      {{{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}}, "bitsandbytes"},
      {packed_mxfp4({{"strategy", "tensor_group"}, {"group_size", 16}}), "NVFP4"},
      {packed_mxfp4({{"group_size", 16}}), "NVFP4"},
      {with(packed_mxfp4(), {{"format", "nvfp4-pack-quantized"}}), "NVFP4"},
      {packed_mxfp4({{"group_size", 64}}), "per \"group\" of 64"},
      {packed_mxfp4({{"strategy", "channel"}, {"group_size", nullptr}}), "\"channel\""},
      {with(packed_mxfp4(), {{"format", "float-quantized"}}), "\"float-quantized\""},
      {with(packed_mxfp4(), {{"transform_config", {{"config_groups", {{"R1", Json::object()}}}}}}),
       "rotated"},
      {{{"quant_method", "new-method"}}, "\"new-method\""},
      {{{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}, "NVFP4"},
      {{{"quant_method", "compressed-tensors"},
        {"config_groups", {{"g", {{"weights", {{"num_bits", 4}, {"type", "int"}}}}}}}},
       "4-bit integer"},
      {{{"quant_method", "compressed-tensors"},
        {"config_groups", {{"g", {{"weights", {{"num_bits", 8}, {"type", "int"}}}}}}}},
       "8-bit integer"},
      {{{"quant_method", "fp8"}, {"fmt", "e5m2"}}, "e4m3"},
  };
  for (const auto& [config, name] : refused) {
    const std::string message = error_of([&] { format_of(config); });
    EXPECT_NE(message.find(name), std::string::npos) << message;
    EXPECT_NE(message.find("use a checkpoint"), std::string::npos) << message;
    EXPECT_EQ(message.find("config.json: quantization_config"), 0u) << message;
  }
}

TEST(WeightFormat, BrokenConfigsAreErrors) {
  EXPECT_ERROR(format_of(Json::object()), "quant_method: missing");
  EXPECT_ERROR(format_of(with(kDeepSeek, {{"weight_block_size", {128}}})), "weight_block_size");
  EXPECT_ERROR(format_of(with(kDeepSeek, {{"weight_block_size", {0, 128}}})), "weight_block_size");
  EXPECT_ERROR(format_of({{"quant_method", "compressed-tensors"}}), "config_groups: missing");
}

}  // namespace
}  // namespace atom
