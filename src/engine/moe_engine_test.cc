// Models with routed experts through the whole engine: any cut, any layout, the same answer.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "engine/test_requests.h"

namespace atom {
namespace {

namespace fs = std::filesystem;

ModelOptions golden(const std::string& name) {
  ModelOptions o = golden_model(name, 120);
  o.max_num_seqs = 4;
  return o;
}

struct Answer {
  std::vector<int32_t> ids;
  std::vector<float> logits;  // of the prompt, row after row
};

Answer answer(const ModelOptions& options, int64_t prompt_tokens = 45, int64_t max_tokens = 12) {
  LoadedModel model(options);
  Answer result;
  Request r = request_of(prompt_of(prompt_tokens, 0), max_tokens);
  const int64_t vocab = model.workers().vocab();
  result.logits.resize(static_cast<size_t>(prompt_tokens * vocab));
  r.logits_sink = [&](int64_t row, std::span<const float> values) {
    std::copy(values.begin(), values.end(), result.logits.begin() + row * vocab);
  };
  model.engine()
      .submit(std::move(r),
              [&](OutputDelta&& d) {
                result.ids.insert(result.ids.end(), d.token_ids.begin(), d.token_ids.end());
              })
      .take();
  while (model.engine().step()) {
  }
  return result;
}

class MoeModel : public testing::TestWithParam<const char*> {};

TEST_P(MoeModel, AnswersDoNotDependOnChunksOrRanks) {
  const Answer reference = answer(golden(GetParam()));
  struct Variant {
    int64_t batched_tokens, block_size;
    int tp, pp, ep;
  };
  for (const Variant& v : {Variant{16, 4, 1, 1, 1},
                           {40, 8, 2, 1, 1},
                           {40, 8, 2, 1, 2},
                           {24, 4, 4, 1, 2},
                           {64, 4, 1, 2, 1},
                           {17, 2, 2, 2, 2}}) {
    ModelOptions o = golden(GetParam());
    o.max_num_batched_tokens = v.batched_tokens;
    o.block_size = v.block_size;
    o.tp = v.tp;
    o.pp = v.pp;
    o.ep = v.ep;
    const std::string place = fmt::format("chunk {} tp {} pp {} ep {}", v.batched_tokens, v.tp, v.pp, v.ep);
    const Answer got = answer(o);
    EXPECT_EQ(got.ids, reference.ids) << place;
    float worst = 0;
    for (size_t i = 0; i < got.logits.size(); ++i) {
      worst = std::max(worst, std::abs(got.logits[i] - reference.logits[i]));
    }
    EXPECT_LT(worst, 1e-4) << place;
  }
}

TEST_P(MoeModel, PreemptedAndReusedPrefixesGiveTheSameTokens) {
  ModelOptions o = golden(GetParam());
  const std::vector<int32_t> reference = answer(o, 12, 24).ids;
  o.max_model_len = 40;
  o.kv_cache_bytes = 1 << 24;
  int64_t block_bytes = 0;  // of all groups
  const std::vector<CacheGroup> groups = LoadedModel(o).cache_plan().groups;
  for (const CacheGroup& group : groups) {
    block_bytes += group.bytes_per_token * o.block_size;
  }
  o.kv_cache_bytes = 16 * block_bytes;  // three sequences begin with 12 blocks and end with 27
  LoadedModel model(o);
  std::vector<std::vector<int32_t>> ids(4);
  int64_t cached = 0;
  auto submit = [&](size_t i, const std::string& salt) {
    Request r;
    for (int64_t t = 0; t < 12; ++t) r.prompt.push_back(static_cast<int32_t>((t * 37 + t * t) % 96));
    r.cache_salt = salt;
    r.max_tokens = 24;
    r.sampling.temperature = 0;
    r.sampling.ignore_eos = true;
    model.engine()
        .submit(std::move(r),
                [&, i](OutputDelta&& d) {
                  ids[i].insert(ids[i].end(), d.token_ids.begin(), d.token_ids.end());
                  if (i == 3) cached += d.usage.cached_tokens;
                })
        .take();
  };
  for (size_t i = 0; i < 3; ++i) submit(i, std::to_string(i));
  while (model.engine().step()) {
  }
  EXPECT_GT(model.engine().stats().scheduler.preemptions, 0);
  submit(3, "2");
  while (model.engine().step()) {
  }
  EXPECT_GT(cached, 0);
  for (const auto& got : ids) EXPECT_EQ(got, reference);
}

INSTANTIATE_TEST_SUITE_P(Families, MoeModel,
                         testing::Values("qwen3_moe_plain", "mixtral_plain", "glm4_moe_plain",
                                         "gpt_oss_one_kv"),
                         [](const auto& info) { return std::string(info.param); });

TEST(MoeLayouts, StackedAndSeparateExpertsGiveTheSameBits) {
  for (const auto& [separate, stacked] :
       {std::pair{"qwen3_moe_mixed", "qwen3_moe_fused"}, std::pair{"glm4_moe_plain", "glm4_moe_fused"}}) {
    for (const int ep : {1, 2}) {
      ModelOptions a = golden(separate), b = golden(stacked);
      a.tp = b.tp = a.ep = b.ep = ep;
      EXPECT_EQ(answer(a).logits, answer(b).logits) << separate << " ep " << ep;
    }
  }
}

TEST(MoeLayouts, GroupsMustDivideTheRanks) {
  ModelOptions o = golden("mixtral_plain");
  o.tp = 2;
  o.ep = 4;
  EXPECT_THROW(LoadedModel{o}, Error);
}

// A copy of a golden folder with one tensor called something else.
class Renamed {
 public:
  Renamed(const std::string& name, const std::string& from, const std::string& to) {
    path_ = fs::temp_directory_path() / fmt::format("atom_moe_{}_{}", name, ::getpid());
    fs::create_directories(path_);
    for (const auto& entry : fs::directory_iterator(golden(name).model)) {
      if (entry.path().filename().string().starts_with("golden")) continue;
      std::ifstream in(entry.path(), std::ios::binary);
      std::string bytes((std::istreambuf_iterator<char>(in)), {});
      for (size_t at = 0; (at = bytes.find(from, at)) != std::string::npos; at += to.size()) {
        bytes.replace(at, from.size(), to);
      }
      std::ofstream(path_ / entry.path().filename(), std::ios::binary) << bytes;
    }
  }
  ~Renamed() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

TEST(MoeLayouts, OneMissingExpertIsNamed) {
  const Renamed folder("qwen3_moe_plain", "layers.1.mlp.experts.3.up_proj", "layers.1.mlp.experts.X.up_proj");
  ModelOptions o = golden("qwen3_moe_plain");
  o.model = folder.path();
  try {
    LoadedModel model(o);
    FAIL() << "loaded";
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("model.layers.1.mlp.experts.3.up_proj.weight: missing"), std::string::npos)
        << e.message();
  }
}

TEST(MoeLayouts, StackOfTooFewExpertsIsRefused) {
  const Renamed folder("qwen3_moe_fused", "\"num_local_experts\": 5", "\"num_local_experts\": 4");
  ModelOptions o = golden("qwen3_moe_fused");
  o.model = folder.path();
  EXPECT_THROW(LoadedModel{o}, Error);
}

TEST(MoeModels, UnsupportedStorageIsRefusedByName) {
  const Renamed folder("gpt_oss_one_kv", "\"architectures\"",
                       "\"quantization_config\": {\"quant_method\": \"awq\"}, \"architectures\"");
  ModelOptions o = golden("gpt_oss_one_kv");
  o.model = folder.path();
  try {
    LoadedModel model(o);
    FAIL() << "loaded";
  } catch (const Error& e) {
    EXPECT_NE(e.message().find("AWQ"), std::string::npos) << e.message();
  }
}

}  // namespace
}  // namespace atom
