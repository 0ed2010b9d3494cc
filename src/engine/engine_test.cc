// The engine on a tiny model: whatever runs beside a request, and however it is cut, its tokens are the same.
#include "engine/engine.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "engine/test_requests.h"

namespace atom {
namespace {

ModelOptions tiny(const std::string& name = "llama_plain") { return golden_model(name, 120); }

// What came of the samples of submitted requests.
class Results {
 public:
  struct Sample {
    std::vector<int32_t> ids;
    std::vector<std::vector<TokenLogprob>> logprobs;
    std::optional<FinishReason> finish;
    Usage usage;
    std::string text;
  };
  RequestId submit(Engine& engine, Request request) {
    return engine
        .submit(std::move(request),
                [this](OutputDelta&& d) {
                  Sample& s = samples_[{d.request, d.index}];
                  s.ids.insert(s.ids.end(), d.token_ids.begin(), d.token_ids.end());
                  s.logprobs.insert(s.logprobs.end(), d.logprobs.begin(), d.logprobs.end());
                  s.text += d.text;
                  EXPECT_FALSE(s.finish.has_value()) << "news after the end";
                  s.finish = d.finish;
                  if (d.finish) s.usage = d.usage;
                })
        .take();
  }
  Sample& of(RequestId id, int32_t index = 0) { return samples_[{id, index}]; }

 private:
  std::map<std::pair<RequestId, int32_t>, Sample> samples_;
};

void run(Engine& engine) {
  for (int i = 0; engine.step(); ++i) ASSERT_LT(i, 100000) << "no end";
}

std::vector<int32_t> alone(const ModelOptions& options, Request request) {
  LoadedModel model(options);
  Results results;
  const RequestId id = results.submit(model.engine(), std::move(request));
  run(model.engine());
  return results.of(id).ids;
}

TEST(Engine, TokensDoNotDependOnBatchMatesChunksBlocksOrRanks) {
  std::vector<std::vector<int32_t>> reference;
  for (int i = 0; i < 6; ++i) reference.push_back(alone(tiny(), request_of(prompt_of(9 + 7 * i, i), 20)));
  struct Variant {
    int64_t batched_tokens, block_size;
    int tp, pp;
  };
  for (const Variant& v : {Variant{512, 4, 1, 1},
                           {16, 4, 1, 1},
                           {33, 16, 1, 1},
                           {64, 1, 1, 1},
                           {40, 8, 2, 1},
                           {40, 8, 1, 2},
                           {24, 4, 2, 2}}) {
    ModelOptions o = tiny();
    o.max_num_batched_tokens = v.batched_tokens;
    o.block_size = v.block_size;
    o.tp = v.tp;
    o.pp = v.pp;
    LoadedModel model(o);
    Results results;
    std::vector<RequestId> ids;
    for (int i = 0; i < 6; ++i) {
      ids.push_back(results.submit(model.engine(), request_of(prompt_of(9 + 7 * i, i), 20)));
      if (i % 2 == 1) model.engine().step();  // arrivals while others run
    }
    run(model.engine());
    for (int i = 0; i < 6; ++i) {
      EXPECT_EQ(results.of(ids[i]).ids, reference[i])
          << "chunk " << v.batched_tokens << " block " << v.block_size << " tp " << v.tp << " pp " << v.pp
          << " request " << i;
      EXPECT_EQ(results.of(ids[i]).finish, FinishReason::length);
    }
  }
}

TEST(Engine, PrefixHitsGiveTheSameTokensAndAreReported) {
  LoadedModel model(tiny());
  Results results;
  const RequestId first = results.submit(model.engine(), request_of(prompt_of(30, 1), 10));
  run(model.engine());
  const RequestId second = results.submit(model.engine(), request_of(prompt_of(30, 1), 10));
  run(model.engine());
  EXPECT_EQ(results.of(first).usage.cached_tokens, 0);
  EXPECT_EQ(results.of(second).usage.cached_tokens, 28);
  EXPECT_EQ(results.of(second).ids, results.of(first).ids);
  // A follow-up of the conversation reuses what was generated, too.
  std::vector<int32_t> follow = prompt_of(30, 1);
  follow.insert(follow.end(), results.of(first).ids.begin(), results.of(first).ids.end());
  const std::vector<int32_t> expected = alone(tiny(), request_of(follow, 10));
  const RequestId third = results.submit(model.engine(), request_of(follow, 10));
  run(model.engine());
  EXPECT_GE(results.of(third).usage.cached_tokens, 36);
  EXPECT_EQ(results.of(third).ids, expected);
}

TEST(Engine, PreemptedRequestsContinueWhereTheyWere) {
  ModelOptions o = tiny();
  std::vector<std::vector<int32_t>> reference;
  for (int i = 0; i < 6; ++i) reference.push_back(alone(o, request_of(prompt_of(8, i), 12)));
  o.max_model_len = 24;
  LoadedModel sizes(o);
  const int64_t block_bytes = sizes.cache_plan().used_bytes / sizes.cache_plan().groups.front().blocks;
  o.kv_cache_bytes = 8 * block_bytes;  // 8 blocks of 4 tokens; each request needs 5 in the end
  LoadedModel model(o);
  ASSERT_EQ(model.cache_plan().groups.front().blocks, 8);
  Results results;
  std::vector<RequestId> ids;
  for (int i = 0; i < 6; ++i) {
    Request r = request_of(prompt_of(8, i), 12);
    r.sampling.logprobs = 0;
    ids.push_back(results.submit(model.engine(), std::move(r)));
  }
  run(model.engine());
  EXPECT_GT(model.engine().stats().scheduler.preemptions, 0);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(results.of(ids[i]).ids, reference[i]);
    EXPECT_EQ(results.of(ids[i]).logprobs.size(), 12u);
  }
  EXPECT_EQ(model.engine().stats().scheduler.groups.front().used, 0);
}

TEST(Engine, ARequestThatCanNeverFitIsRefusedAtOnceAndOthersGoOn) {
  LoadedModel model(tiny());
  const auto refused = model.engine().submit(request_of(prompt_of(200, 0), 4), [](OutputDelta&&) {});
  ASSERT_FALSE(refused.ok());
  Results results;
  const RequestId id = results.submit(model.engine(), request_of(prompt_of(8, 0), 4));
  run(model.engine());
  EXPECT_EQ(results.of(id).ids.size(), 4u);
}

TEST(Engine, AnInvalidRequestIsRefusedByName) {
  LoadedModel model(tiny());
  auto message = [&](Request r) {
    const auto result = model.engine().submit(std::move(r), [](OutputDelta&&) {});
    return result.ok() ? std::string() : result.error().message();
  };
  EXPECT_NE(message(request_of({-1}, 1)).find("prompt"), std::string::npos);
  EXPECT_NE(message(request_of({1 << 30}, 1)).find("prompt"), std::string::npos);
  Request many = request_of({1}, 1);
  many.n = 1000000000;
  EXPECT_NE(message(many).find("n:"), std::string::npos);
  Request stop = request_of({1}, 1);
  stop.stop = {"x"};
  EXPECT_NE(message(stop).find("stop"), std::string::npos);
  EXPECT_FALSE(message(request_of({}, 1)).empty());
}

TEST(Engine, SeededSamplesAreTheSameAloneInABatchAndAfterPreemption) {
  auto seeded = [](int32_t salt) {
    Request r = request_of(prompt_of(8, salt), 12);
    r.sampling.temperature = 1;
    r.sampling.seed = 42;
    return r;
  };
  ModelOptions o = tiny();
  const std::vector<int32_t> reference = alone(o, seeded(0));
  o.max_model_len = 24;
  LoadedModel sizes(o);
  o.kv_cache_bytes = 8 * (sizes.cache_plan().used_bytes / sizes.cache_plan().groups.front().blocks);
  LoadedModel model(o);
  Results results;
  for (int i = 1; i < 6; ++i) results.submit(model.engine(), seeded(i));
  const RequestId id = results.submit(model.engine(), seeded(0));
  run(model.engine());
  EXPECT_EQ(results.of(id).ids, reference);
  EXPECT_GT(model.engine().stats().scheduler.preemptions, 0);
}

TEST(Engine, SamplesOfOneSeededRequestDifferAndRepeat) {
  auto two = [] {
    Request r = request_of(prompt_of(8, 3), 12);
    r.n = 2;
    r.sampling.temperature = 1;
    r.sampling.seed = 7;
    return r;
  };
  std::vector<std::vector<int32_t>> runs;
  for (int i = 0; i < 2; ++i) {
    LoadedModel model(tiny());
    Results results;
    const RequestId id = results.submit(model.engine(), two());
    run(model.engine());
    runs.push_back(results.of(id, 0).ids);
    runs.push_back(results.of(id, 1).ids);
  }
  EXPECT_NE(runs[0], runs[1]);
  EXPECT_EQ(runs[0], runs[2]);
  EXPECT_EQ(runs[1], runs[3]);
}

TEST(Engine, CancellingFreesTheBlocksWithinAStep) {
  LoadedModel model(tiny());
  Results results;
  const RequestId running = results.submit(model.engine(), request_of(prompt_of(40, 0), 60));
  for (int i = 0; i < 5; ++i) model.engine().step();
  const RequestId queued = results.submit(model.engine(), request_of(prompt_of(40, 1), 60));
  model.engine().cancel(running);
  model.engine().cancel(queued);
  EXPECT_FALSE(model.engine().step());
  EXPECT_EQ(results.of(running).finish, FinishReason::cancelled);
  EXPECT_EQ(results.of(queued).finish, FinishReason::cancelled);
  EXPECT_EQ(model.engine().stats().scheduler.groups.front().used, 0);
}

// Ends of a text in either file, alone or in a list.
TEST(Engine, EveryEndOfTheFilesEndsTheTextUnlessItIsIgnored) {
  namespace fs = std::filesystem;
  const auto free_run = alone(tiny(), request_of(prompt_of(12, 2), 10));
  const int32_t end = free_run[4];
  const auto first = std::find(free_run.begin(), free_run.end(), end);
  const std::string golden = tiny().model, folder = testing::TempDir() + "engine_test_ends";
  struct Case {
    Json config, generation;
    bool ends;
  };
  for (const Case& c : {Case{{95, end}, nullptr, true},
                        {end, {95, 94}, true},
                        {95, end, true},
                        {nullptr, {94, end}, true},
                        {95, {94, 93}, false}}) {
    fs::remove_all(folder);
    fs::create_directories(folder);
    fs::create_symlink(golden + "/model.safetensors", folder + "/model.safetensors");
    Json config = Json::parse(std::ifstream(golden + "/config.json"));
    config["eos_token_id"] = c.config;
    std::ofstream(folder + "/config.json") << config;
    std::ofstream(folder + "/generation_config.json") << Json{{"eos_token_id", c.generation}};
    ModelOptions o = tiny();
    o.model = folder;
    Request request = request_of(prompt_of(12, 2), 10);
    EXPECT_EQ(alone(o, request), free_run);  // they are ignored
    request.sampling.ignore_eos = false;
    const std::vector<int32_t> want(free_run.begin(), c.ends ? first + 1 : free_run.end());
    EXPECT_EQ(alone(o, request), want) << c.config << " " << c.generation;
  }
  fs::remove_all(folder);
}

TEST(Engine, StopIdsEndTheText) {
  const std::vector<int32_t> free_run = alone(tiny(), request_of(prompt_of(12, 2), 10));
  Request r = request_of(prompt_of(12, 2), 10);
  r.sampling.stop_ids = {free_run[4]};
  const std::vector<int32_t> stopped = alone(tiny(), std::move(r));
  const auto first = std::find(free_run.begin(), free_run.end(), free_run[4]);
  EXPECT_EQ(stopped, std::vector<int32_t>(free_run.begin(), first + 1));
}

TEST(Engine, PromptLogprobsAreThoseOfScoring) {
  LoadedModel model(tiny());
  Request r = request_of(prompt_of(20, 5), 1);
  r.prompt_logprobs = 1;
  size_t rows = 0;
  model.engine()
      .submit(std::move(r),
              [&](OutputDelta&& d) {
                for (const auto& entries : d.prompt_logprobs) {
                  ++rows;
                  ASSERT_EQ(entries.size(), 2u);
                  EXPECT_LE(entries[0].logprob, entries[1].logprob + 1e-6f);  // no token beats the best
                }
              })
      .take();
  run(model.engine());
  EXPECT_EQ(rows, 19u);
}

TEST(Engine, WindowsGiveTheSameTokensHoweverThePromptIsCut) {
  ModelOptions o = tiny("qwen3_window");
  const std::vector<int32_t> reference = alone(o, request_of(prompt_of(60, 1), 30));
  for (const int64_t chunk : {1, 3, 16, 17}) {
    for (const int64_t block : {1, 4, 16, 32}) {
      ModelOptions v = o;
      v.max_num_seqs = 1;
      v.max_num_batched_tokens = std::max<int64_t>(chunk, 2);
      v.block_size = block;
      EXPECT_EQ(alone(v, request_of(prompt_of(60, 1), 30)), reference)
          << "chunk " << chunk << " block " << block;
    }
  }
}

TEST(Engine, PromptsAsLongAsAWindowOrABlockGiveTheSameTokensHoweverTheyAreCut) {
  ModelOptions o = tiny("qwen3_window");  // windows of 16
  o.block_size = 8;
  o.threads = 1;
  for (const int64_t length : {8, 9, 15, 16, 17, 32}) {
    ModelOptions whole = o;
    whole.max_num_batched_tokens = 64;
    const std::vector<int32_t> reference = alone(whole, request_of(prompt_of(length, 1), 10));
    for (const int64_t chunk : {2, 5}) {
      ModelOptions v = o;
      v.max_num_seqs = 1;
      v.max_num_batched_tokens = chunk;
      EXPECT_EQ(alone(v, request_of(prompt_of(length, 1), 10)), reference)
          << length << " in chunks of " << chunk;
    }
  }
}

TEST(Engine, TakesTheCacheBytesItIsGivenAndNoMore) {
  for (const char* name : {"llama_plain", "mistral_window", "qwen3_window", "glm_moe_dsa_shared"}) {
    ModelOptions o = tiny(name);
    o.kv_cache_bytes = int64_t{64} << 20;
    LoadedModel model(o);
    EXPECT_LE(model.workers().cache_bytes(), o.kv_cache_bytes) << name;
    EXPECT_GE(model.workers().cache_bytes(), o.kv_cache_bytes * 9 / 10) << name;
    EXPECT_EQ(model.workers().cache_bytes(), model.cache_plan().used_bytes) << name;
  }
}

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

TEST(Engine, TheProcessGrowsByTheCacheThatIsFilled) {
  ModelOptions o = tiny("llama_plain");
  o.kv_cache_bytes = int64_t{64} << 20;
  o.max_num_seqs = 32;
  o.max_num_batched_tokens = 1024;
  o.threads = 1;
  LoadedModel model(o);
  // Different prompts, kept for reuse, until there are more tokens of them than the cache has room for.
  const int64_t tokens = 48, per_token = 2 * 2 * 4 * 12 * 4;  // layers, keys and values, heads, lanes, bytes
  const auto fill = [&](int64_t bytes, uint64_t seed) {
    std::mt19937_64 rng(seed);
    for (int64_t done = 0; done < bytes; done += tokens * per_token) {
      std::vector<int32_t> prompt(static_cast<size_t>(tokens));
      for (int32_t& id : prompt) id = static_cast<int32_t>(rng() % 96);
      model.engine().submit(request_of(std::move(prompt), 1), [](OutputDelta&&) {}).take();
    }
    run(model.engine());
  };
  fill(o.kv_cache_bytes / 32, 1);  // whatever else a step takes has been taken then
  const int64_t before = resident_bytes();
  fill(o.kv_cache_bytes, 2);
  EXPECT_NEAR(static_cast<double>(resident_bytes() - before), static_cast<double>(o.kv_cache_bytes) * 31 / 32,
              static_cast<double>(o.kv_cache_bytes) / 10);
  fill(o.kv_cache_bytes, 3);
  EXPECT_NEAR(static_cast<double>(resident_bytes() - before), static_cast<double>(o.kv_cache_bytes) * 31 / 32,
              static_cast<double>(o.kv_cache_bytes) / 10);
}

}  // namespace
}  // namespace atom
