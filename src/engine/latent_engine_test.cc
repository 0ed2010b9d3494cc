// The engine on latent and sparse attention: chunks, blocks, ranks, prefix hits and preemption do not change
// tokens, although rows select among positions that other steps and stages wrote.
#include <gtest/gtest.h>

#include <array>
#include <map>

#include "engine/test_requests.h"

namespace atom {
namespace {

const char* const kModels[] = {"deepseek_v3_groups", "deepseek_v3_direct", "deepseek_v32",
                               "glm_moe_dsa_shared"};

ModelOptions tiny(const std::string& name) { return golden_model(name, 80); }

Request request_of(int64_t tokens, int32_t salt) { return atom::request_of(prompt_of(tokens, salt), 12); }

struct Answer {
  std::vector<int32_t> ids;
  Usage usage;
};

// Runs the requests together and gives their tokens in order.
std::vector<Answer> answers(LoadedModel& model, const std::vector<Request>& requests) {
  std::vector<Answer> result(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    model.engine()
        .submit(requests[i],
                [&result, i](OutputDelta&& d) {
                  result[i].ids.insert(result[i].ids.end(), d.token_ids.begin(), d.token_ids.end());
                  if (d.finish) result[i].usage = d.usage;
                })
        .take();
    if (i % 2 == 1) model.engine().step();  // arrivals while others run
  }
  for (int steps = 0; model.engine().step(); ++steps) {
    if (steps > 10000) {
      ADD_FAILURE() << "no end";
      break;
    }
  }
  return result;
}

std::vector<Request> some_requests() { return {request_of(5, 0), request_of(17, 1), request_of(29, 2)}; }

std::vector<std::vector<int32_t>> one_by_one(const std::string& name, const char* cache = "auto") {
  std::vector<std::vector<int32_t>> ids;
  ModelOptions o = tiny(name);
  o.kv_cache_dtype = cache;
  o.prefix_caching = false;
  LoadedModel model(o);
  for (const Request& request : some_requests()) {
    ids.push_back(answers(model, {request})[0].ids);
  }
  return ids;
}

TEST(LatentEngine, TokensDoNotDependOnBatchMatesChunksBlocksOrRanks) {
  struct Variant {
    int64_t batched_tokens, block_size;
    int tp, pp;
  };
  for (const char* name : kModels) {
    const std::vector<std::vector<int32_t>> want = one_by_one(name);
    for (const Variant& v : {Variant{7, 4, 1, 1}, {33, 16, 2, 1}, {11, 1, 1, 2}}) {
      ModelOptions o = tiny(name);
      o.max_num_batched_tokens = v.batched_tokens;
      o.block_size = v.block_size;
      o.tp = v.tp;
      o.pp = v.pp;
      LoadedModel model(o);
      const std::vector<Answer> got = answers(model, some_requests());
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(got[i].ids, want[i]) << name << " chunk " << v.batched_tokens << " block " << v.block_size
                                       << " tp " << v.tp << " pp " << v.pp << " request " << i;
      }
    }
  }
}

TEST(LatentEngine, PrefixHitsGiveTheSameTokens) {
  for (const char* name : kModels) {
    LoadedModel model(tiny(name));
    const Answer first = answers(model, {request_of(30, 1)})[0];
    const Answer second = answers(model, {request_of(30, 1)})[0];
    EXPECT_EQ(second.usage.cached_tokens, 28) << name;
    EXPECT_EQ(second.ids, first.ids) << name;
  }
}

TEST(LatentEngine, PreemptedRequestsContinueWhereTheyWere) {
  const std::string name = "glm_moe_dsa_shared";
  const std::vector<std::vector<int32_t>> want = one_by_one(name);
  ModelOptions o = tiny(name);
  o.max_model_len = 48;
  LoadedModel sizes(o);
  const int64_t block_bytes = sizes.cache_plan().used_bytes / sizes.cache_plan().groups.front().blocks;
  o.kv_cache_bytes = 13 * block_bytes;  // the three requests need 5 + 8 + 11 in the end
  LoadedModel model(o);
  const std::vector<Answer> got = answers(model, some_requests());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i].ids, want[i]) << i;
}

// Index keys in E4M3 have scales, which go where the keys go.
TEST(LatentEngine, ScaledIndexKeysComeWithTheirScalesIntoOtherBlocksStagesAndPrefixes) {
  for (const char* name : {"deepseek_v32", "glm_moe_dsa_shared"}) {
    const std::vector<std::vector<int32_t>> want = one_by_one(name, "fp8");
    for (const auto& [batched_tokens, block_size, tp, pp] :
         {std::array{7, 4, 1, 1}, {33, 16, 2, 1}, {11, 1, 1, 2}}) {
      ModelOptions o = tiny(name);
      o.kv_cache_dtype = "fp8";
      o.max_num_batched_tokens = batched_tokens;
      o.block_size = block_size;
      o.tp = tp;
      o.pp = pp;
      LoadedModel model(o);
      for (const bool again : {false, true}) {
        const std::vector<Answer> got = answers(model, some_requests());
        for (size_t i = 0; i < want.size(); ++i) {
          EXPECT_EQ(got[i].ids, want[i]) << name << " chunk " << batched_tokens << " block " << block_size
                                         << " tp " << tp << " pp " << pp << " request " << i;
          if (again && i > 0) {
            EXPECT_GT(got[i].usage.cached_tokens, 0) << name << " request " << i;
          }
        }
      }
    }
  }
}

// One entry for all heads, and index keys for the layers alone that own an indexer.
TEST(LatentEngine, CachesOneEntryPerTokenAndIndexKeysOfOwnersOnly) {
  LoadedModel model(tiny("glm_moe_dsa_shared"));
  ASSERT_EQ(model.cache_plan().groups.size(), 1u);
  EXPECT_EQ(model.cache_plan().groups.front().bytes_per_token, 4 * (6 * (16 + 8) + 3 * 16));
}

}  // namespace
}  // namespace atom
