// The memory bill: known models, and agreement with what is really taken.
#include "engine/memory_plan.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "engine/loaded_model.h"

namespace atom {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

ModelFiles published(const std::string& name) {
  ModelFiles files;
  files.root = name;
  files.config = flatten_config(
      read_json_file(std::filesystem::path(ATOM_TEST_DATA) / "data" / "configs" / (name + ".json")));
  return files;
}

MemoryRequest request(int64_t sequences, int64_t tokens, int64_t memory = 0) {
  MemoryRequest r;
  r.limits = {
      .block_size = 16, .max_num_seqs = sequences, .max_model_len = tokens, .max_num_batched_tokens = 512};
  r.device_memory = memory;
  return r;
}

const CacheLine& line_of(const RankBill& bill, CacheKind kind, int64_t bytes_per_token) {
  for (const CacheLine& line : bill.cache) {
    if (line.kind == kind && line.bytes_per_token == bytes_per_token) return line;
  }
  throw failed("no such cache");
}

std::string refusal(const ModelFiles& files, const MemoryRequest& request) {
  try {
    plan_memory(files, nullptr, request);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::invalid);
    return error.message();
  }
  return "accepted";
}

TEST(MemoryPlan, WindowLayersOfGptOssAreBilledForTheirWindow) {
  const MemoryPlan plan = plan_memory(published("gpt-oss-20b"), nullptr, request(32, 8192));
  EXPECT_EQ(plan.without_windows, 12 * kGiB);
  ASSERT_EQ(plan.ranks.size(), 1);
  const int64_t exact = 6 * kGiB + 96 * kMiB;  // 6.09 GiB
  const int64_t blocks =
      12 * 2048 * (32 * 16 + 512);  // one more per window layer and sequence, and one step's
  EXPECT_EQ(plan.ranks[0].cache_bytes(), exact + blocks);
  EXPECT_NEAR(static_cast<double>(plan.ranks[0].weights) * 1e-9, 13.76, 0.05);  // the published files
}

TEST(MemoryPlan, FullAttentionKeepsEveryTokenOfEveryLayer) {
  const MemoryPlan plan = plan_memory(published("qwen3-32b"), nullptr, request(1, 4096));
  EXPECT_EQ(plan.ranks[0].cache_bytes(), 262'144 * 4096);
  EXPECT_EQ(plan.without_windows, plan.ranks[0].cache_bytes());
  EXPECT_NEAR(static_cast<double>(plan.ranks[0].weights) * 1e-9, 65.5, 0.1);
}

TEST(MemoryPlan, EveryRankKeepsTheWholeLatent) {
  for (const int tp : {1, 2}) {
    MemoryRequest r = request(1, 1024);
    r.parallel.tp = tp;
    const MemoryPlan plan = plan_memory(published("glm-5.2"), nullptr, r);
    ASSERT_EQ(plan.ranks.size(), static_cast<size_t>(tp));
    for (const RankBill& bill : plan.ranks) {
      EXPECT_EQ(line_of(bill, CacheKind::paged, 1152).layers, 78);
      EXPECT_EQ(line_of(bill, CacheKind::paged, 256).layers, 21);  // layers that own an indexer
    }
  }
}

TEST(MemoryPlan, RanksShareKeyValueHeads) {
  MemoryRequest r = request(1, 1024);
  r.parallel.tp = 4;
  EXPECT_EQ(plan_memory(published("qwen3-30b-a3b"), nullptr, r).ranks[3].cache_bytes(),
            48 * 2 * 128 * 2 * 1024);
  r.parallel.tp = 8;  // 4 heads: neighbours keep the same one
  EXPECT_EQ(plan_memory(published("qwen3-30b-a3b"), nullptr, r).ranks[7].cache_bytes(),
            48 * 2 * 128 * 2 * 1024);
}

// Qwen3-Next-80B-A3B as published: 12 of 48 layers grow with the length.
TEST(MemoryPlan, RecurrentLayersDoNotGrow) {
  ModelFiles files;
  files.config = {{"architectures", {"Qwen3NextForCausalLM"}},
                  {"hidden_size", 2048},
                  {"num_hidden_layers", 48},
                  {"num_attention_heads", 16},
                  {"num_key_value_heads", 2},
                  {"head_dim", 256},
                  {"intermediate_size", 5120},
                  {"vocab_size", 151936},
                  {"num_experts", 512},
                  {"num_experts_per_tok", 10},
                  {"moe_intermediate_size", 512},
                  {"shared_expert_intermediate_size", 512},
                  {"linear_conv_kernel_dim", 4},
                  {"linear_key_head_dim", 128},
                  {"linear_value_head_dim", 128},
                  {"linear_num_key_heads", 16},
                  {"linear_num_value_heads", 32},
                  {"full_attention_interval", 4},
                  {"partial_rotary_factor", 0.25},
                  {"rope_theta", 10000000},
                  {"torch_dtype", "bfloat16"}};
  const int64_t state = 4 * (3 * (2 * 16 + 32) * 128 + 32 * 128 * 128);
  for (const int64_t tokens : {1024, 65536}) {
    const RankBill bill = plan_memory(files, nullptr, request(2, tokens)).ranks[0];
    EXPECT_EQ(line_of(bill, CacheKind::paged, 2048).layers, 12);
    EXPECT_EQ(line_of(bill, CacheKind::paged, 2048).bytes(), 12 * 2048 * 2 * tokens);
    EXPECT_EQ(line_of(bill, CacheKind::state, state).layers, 36);
    EXPECT_EQ(line_of(bill, CacheKind::state, state).bytes(), 36 * state * 2);
  }
}

TEST(MemoryPlan, StagesAreBilledForTheirOwnLayers) {
  MemoryRequest r = request(4, 2048);
  const int64_t whole = plan_memory(published("mixtral-8x7b"), nullptr, r).ranks[0].weights;
  r.parallel = {.tp = 2, .pp = 2, .stage_partition = {20, 12}};
  const MemoryPlan plan = plan_memory(published("mixtral-8x7b"), nullptr, r);
  ASSERT_EQ(plan.ranks.size(), 4);
  int64_t weights = 0;
  for (const RankBill& bill : plan.ranks) weights += bill.weights;
  // Norms and routers are on both ranks of a stage.
  EXPECT_GE(weights, whole);
  EXPECT_LT(static_cast<double>(weights), 1.001 * static_cast<double>(whole));
  EXPECT_EQ(plan.ranks[0].cache_bytes(), 20 * 2048 * 4 * 2048);
  EXPECT_EQ(plan.ranks[3].cache_bytes(), 12 * 2048 * 4 * 2048);
}

TEST(MemoryPlan, ExpertsAreDealtToGroups) {
  MemoryRequest r = request(1, 1024);
  r.parallel = {.tp = 4, .ep = 4};
  const MemoryPlan dealt = plan_memory(published("qwen3-30b-a3b"), nullptr, r);
  r.parallel.ep = 1;
  const MemoryPlan cut = plan_memory(published("qwen3-30b-a3b"), nullptr, r);
  EXPECT_EQ(dealt.ranks[0].weights, cut.ranks[0].weights);  // 32 experts, or a quarter of 128
  EXPECT_NEAR(static_cast<double>(cut.ranks[0].weights) / (30.53e9 / 4 * 2), 1, 0.01);
}

TEST(MemoryPlan, RefusesMemoryForLessThanOneSequenceAndSaysWhatFits) {
  const ModelFiles model = published("qwen3-32b");
  const std::string message = refusal(model, request(1, 131072, 80 * kGiB));
  const size_t at = message.find("lower --max-model-len to ");
  ASSERT_NE(at, std::string::npos) << message;
  const int64_t longest = std::stoll(message.substr(at + 25));
  EXPECT_EQ(refusal(model, request(1, longest, 80 * kGiB)), "accepted");
  EXPECT_NE(refusal(model, request(1, longest + 1, 80 * kGiB)), "accepted");
  MemoryRequest shorten = request(1, 131072, 80 * kGiB);
  shorten.longest_context = true;
  EXPECT_EQ(plan_memory(model, nullptr, shorten).limits.max_model_len, longest);
  EXPECT_NE(refusal(model, request(1, 1024, 60 * kGiB)).find("no room for a token"), std::string::npos);
}

TEST(MemoryPlan, ListsContextsWithTheSequencesThatFit) {
  const MemoryRequest r = request(1 << 16, 32768, 80 * kGiB);
  const MemoryPlan plan = plan_memory(published("qwen3-32b"), nullptr, r);
  ASSERT_EQ(plan.fits.size(), 6);
  EXPECT_EQ(plan.fits.back().context, 32768);
  EXPECT_EQ(plan.fits.back().sequences, plan.sequences);
  for (const Fit& fit : plan.fits) {
    // One sequence less fits, one more does not: the bill says so.
    EXPECT_LE(
        plan_memory(published("qwen3-32b"), nullptr, request(fit.sequences, fit.context)).ranks[0].total(),
        r.device_memory);
    EXPECT_GT(plan_memory(published("qwen3-32b"), nullptr, request(fit.sequences + 1, fit.context))
                  .ranks[0]
                  .total(),
              r.device_memory);
  }
}

TEST(MemoryPlan, SizesOfQuantizedWeightsComeFromTheConfig) {
  // Experts, shared and dense blocks in e4m3 with a scale per 128 x 128, the rest in bf16.
  const double fp8 = 1 + 4.0 / (128 * 128);
  const MemoryPlan plan = plan_memory(published("deepseek-v3"), nullptr, request(1, 1024));
  const double plain = 2 * 129280 * 7168.0 + 58 * 256 * 7168.0;  // embedding, head, routers
  const double expected = fp8 * (671.03e9 - plain) + 2 * plain;
  EXPECT_NEAR(static_cast<double>(plan.ranks[0].weights) / expected, 1, 0.001);
  ModelFiles unknown = published("deepseek-v3");
  unknown.config["quantization_config"]["quant_method"] = "mystery";
  EXPECT_NE(refusal(unknown, request(1, 1024)).find("mystery"), std::string::npos);
}

TEST(MemoryPlan, SizesOfMxfp4ComeFromTheConfigOfEachPublisher) {
  const double mxfp4 = 0.5 + 1.0 / 32;
  const Json quark = {
      {"dtype", "fp4"}, {"qscheme", "per_group"}, {"group_size", 32}, {"scale_format", "e8m0"}};
  const Json fp8 = {{"dtype", "fp8_e4m3"}, {"qscheme", "per_tensor"}};
  ModelFiles model = published("qwen3-32b");
  const double attention = 64 * 5120.0 * (8192 + 2 * 1024 + 8192), mlp = 64 * 3 * 5120.0 * 25600;
  const double vocabulary = 2 * 2 * 151936 * 5120.0;
  const auto weights = [&](const Json& quantization) {
    model.config["quantization_config"] = quantization;
    return static_cast<double>(plan_memory(model, nullptr, request(1, 1024)).ranks[0].weights);
  };
  const Json linear = {{"num_bits", 4}, {"type", "float"}, {"strategy", "group"}, {"group_size", 32}};
  const double all = mxfp4 * (attention + mlp) + vocabulary;
  EXPECT_NEAR(
      weights({{"quant_method", "compressed-tensors"}, {"config_groups", {{"g", {{"weights", linear}}}}}}) /
          all,
      1, 0.001);
  EXPECT_NEAR(weights({{"quant_method", "quark"}, {"global_quant_config", {{"weight", quark}}}}) / all, 1,
              0.001);
  EXPECT_NEAR(weights({{"quant_method", "quark"},
                       {"global_quant_config", {{"weight", quark}}},
                       {"layer_quant_config", {{"*self_attn*", {{"weight", fp8}}}}}}) /
                  (all + (1 - mxfp4) * attention),
              1, 0.001);
  EXPECT_NEAR(weights({{"quant_method", "quark"},
                       {"global_quant_config", {{"weight", quark}}},
                       {"exclude", {"*self_attn*"}}}) /
                  (all + (2 - mxfp4) * attention),
              1, 0.001);
}

TEST(MemoryPlan, ADrafterIsInTheBillOfTheLastStage) {
  MemoryRequest plain = request(4, 1024), drafting = plain;
  plain.parallel.pp = drafting.parallel.pp = 2;
  drafting.drafts = 3;
  const MemoryPlan without = plan_memory(published("glm-5.2"), nullptr, plain);
  const MemoryPlan with = plan_memory(published("glm-5.2"), nullptr, drafting);
  EXPECT_EQ(with.ranks[0].weights, without.ranks[0].weights);
  EXPECT_EQ(with.ranks[0].drafter_weights, 0);
  const int64_t embedding = 2 * 154880 * int64_t{6144};  // which the drafter needs and the first stage has
  EXPECT_EQ(with.ranks[1].weights, without.ranks[1].weights + with.ranks[1].drafter_weights + embedding);
  EXPECT_NEAR(static_cast<double>(with.ranks[1].drafter_weights), 2 * 9.95e9, 2 * 0.005e9);
  // Its own layer of latents and its own indexer's keys.
  const int64_t tokens = 4 * 1024;
  EXPECT_EQ(with.ranks[1].cache_bytes(), without.ranks[1].cache_bytes() + tokens * 2 * (576 + 128));
  EXPECT_GT(with.ranks[1].workspace, without.ranks[1].workspace);
}

// GLM-5.2: latents of 576 in all 78 layers, and in 21 index keys of 128 lanes, a byte each, with a scale.
TEST(MemoryPlan, IndexKeysInFp8AreBilledWithTheirScales) {
  MemoryRequest fp8 = request(4, 1024);
  fp8.cache = {DType::f8e4m3, DType::bf16};
  const MemoryPlan plan = plan_memory(published("glm-5.2"), nullptr, fp8);
  EXPECT_EQ(plan.cache_types, "f8e4m3, latents in bf16");
  ASSERT_EQ(plan.ranks[0].cache.size(), 2u);
  EXPECT_EQ(plan.ranks[0].cache_bytes(), 4 * 1024 * int64_t{78 * 1152 + 21 * 132});
  const MemoryPlan automatic = plan_memory(published("glm-5.2"), nullptr, request(4, 1024));
  EXPECT_EQ(automatic.cache_types, "bf16");
  EXPECT_EQ(automatic.ranks[0].cache_bytes(), 4 * 1024 * int64_t{78 * 1152 + 21 * 256});
}

// The bill and the engine reckon alike.
TEST(CacheLines, AgreeWithThePlannerOfTheEngine) {
  std::vector<CacheSpec> specs;
  for (int layer = 0; layer < 24; ++layer) {
    specs.push_back(layer % 2 == 0 ? CacheSpec{CacheKind::window, 2048, 128}
                                   : CacheSpec{CacheKind::paged, 2048});
  }
  for (const int64_t tokens : {100, 128, 8192}) {
    const CacheLimits limits{
        .block_size = 16, .max_num_seqs = 32, .max_model_len = tokens, .max_num_batched_tokens = 512};
    int64_t bytes = 0;
    for (const CacheLine& line : cache_lines(specs, limits, tokens, 32)) bytes += line.bytes();
    EXPECT_EQ(bytes, full_load_bytes(specs, limits)) << tokens;
  }
}

class LoadedWeights : public testing::TestWithParam<const char*> {};

TEST_P(LoadedWeights, TakeWhatTheBillSays) {
  ModelOptions options;
  options.model = std::string(ATOM_TEST_DATA) + "/golden/" + GetParam();
  options.threads = 1;
  options.max_model_len = 64;
  options.max_num_seqs = 2;
  for (const int tp : {1, 2}) {
    options.tp = tp;
    LoadedModel loaded(options);
    const Checkpoint checkpoint = Checkpoint::open(loaded.files().root);
    MemoryRequest r = request(2, 64);
    r.parallel.tp = tp;
    const MemoryPlan plan = plan_memory(loaded.files(), &checkpoint, r);
    int64_t weights = 0;
    for (const RankBill& bill : plan.ranks) weights += bill.weights;
    // The bill has vectors as they are widened, the loader counts them as they are stored.
    int64_t vectors = 0;
    const ModelDeclaration declaration(loaded.files());
    for (const ParamEntry& param : declaration.tables().params) {
      if (param.kind != ParamEntry::Kind::vector) continue;
      for (const Piece& piece : param.pieces) vectors += piece.rows * piece.cols;
    }
    EXPECT_GE(weights, loaded.workers().weight_bytes()) << "tp " << tp;
    EXPECT_LE(weights, loaded.workers().weight_bytes() + 2 * tp * vectors) << "tp " << tp;
    EXPECT_FALSE(plan.weights_estimated);
  }
}

TEST(MemoryPlan, ALoadedDrafterTakesWhatTheBillSays) {
  for (const char* name : {"mtp/qwen3_5", "mtp/qwen3_next"}) {
    ModelOptions options;
    options.model = std::string(ATOM_TEST_DATA) + "/" + name;
    options.threads = 1;
    options.max_model_len = 64;
    options.max_num_seqs = 2;
    options.num_speculative_tokens = 0;
    const int64_t plain = LoadedModel(options).workers().weight_bytes();
    options.num_speculative_tokens = 1;
    LoadedModel loaded(options);
    const Checkpoint checkpoint = Checkpoint::open(loaded.files().root);
    MemoryRequest r = request(2, 64);
    r.drafts = 1;
    const RankBill bill = plan_memory(loaded.files(), &checkpoint, r).ranks[0];
    const auto taken = static_cast<double>(loaded.workers().weight_bytes() - plain);
    EXPECT_NEAR(static_cast<double>(bill.drafter_weights) / taken, 1, 0.05) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, LoadedWeights,
                         testing::Values("llama_bias", "llama_tied", "qwen3_moe_fused", "mixtral_plain",
                                         "glm4_moe_plain", "glm_moe_dsa_shared", "qwen3_next_r2",
                                         "qwen3_5_moe"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace atom
