// Speculation on the engine: drafts as the definition makes them, and with any number of them the tokens of
// none.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/test_folder.h"
#include "engine/test_answers.h"

namespace atom {
namespace {

const char* const kFamilies[] = {"deepseek_v3_mtp", "deepseek_v32_mtp", "glm_moe_dsa_mtp",
                                 "glm4_moe_mtp",    "qwen3_next_mtp",   "qwen3_5_mtp"};

ModelOptions tiny(const std::string& name, std::optional<int> drafts, int64_t max_model_len = 96) {
  ModelOptions o = golden_model(name, max_model_len, /*threads=*/1);
  o.num_speculative_tokens = drafts;
  return o;
}

// Follows a golden_mtp.json: tokens, and every step's drafts and how many were right. `steps` of each trace.
void follow(const ModelOptions& base, const std::filesystem::path& golden, double allowed_rate_difference) {
  for (const Json& g : Json::parse(read_file(golden, 1 << 24))) {
    ModelOptions o = base;
    o.num_speculative_tokens = g["k"].get<int>();
    o.prefix_caching = false;
    LoadedModel model(o);
    const auto want = g["tokens"].get<std::vector<int32_t>>();
    std::vector<std::vector<int32_t>> drafts;
    std::vector<int64_t> right;
    model.engine().observe_steps([&](const StepPlan& plan, const StepResult& result) {
      const PlannedSequence& s = plan.sequences.front();
      if (s.drafts == 0) return;
      const auto end = plan.token_ids.begin() + s.first_row + s.tokens;
      drafts.emplace_back(end - s.drafts, end);
      right.push_back(result.sequences.front().tokens - 1);
    });
    Request r = request_of(g["prompt"].get<std::vector<int32_t>>(), static_cast<int64_t>(want.size()) + 12);
    const Answer answer = answers(model.engine(), {r})[0];
    ASSERT_GE(answer.ids.size(), want.size());
    EXPECT_EQ(std::vector<int32_t>(answer.ids.begin(), answer.ids.begin() + want.size()), want) << golden;
    ASSERT_GE(drafts.size(), g["trace"].size());
    int64_t same = 0, accepted = 0;
    const auto steps = static_cast<int64_t>(g["trace"].size());
    for (int64_t i = 0; i < steps; ++i) {
      same += drafts[i] == g["trace"][i]["drafts"].get<std::vector<int32_t>>() &&
              right[i] == g["trace"][i]["accepted"].get<int64_t>();
      accepted += right[i];
    }
    if (allowed_rate_difference == 0) {
      EXPECT_EQ(same, steps) << golden << " k " << g["k"];
    } else {
      const double rate = double(accepted) / double(steps * g["k"].get<int64_t>());
      EXPECT_NEAR(rate, g["accept_rate"].get<double>(), allowed_rate_difference) << " k " << g["k"];
      EXPECT_GE(same, steps * 9 / 10) << golden << " k " << g["k"];
    }
  }
}

TEST(Speculation, DraftsAreThoseOfTheDefinition) {
  for (const char* name : kFamilies) {
    const ModelOptions o = tiny(name, {});
    follow(o, std::filesystem::path(o.model) / "golden_mtp.json", 0);
  }
}

TEST(Speculation, FollowsTheTraceOfATrainedModel) {
  const char* shared = std::getenv("ATOM_SHARED");
  const std::filesystem::path folder =
      std::filesystem::path(shared == nullptr ? "" : shared) / "models" / "deepseek_v3_mtp";
  if (shared == nullptr || !std::filesystem::exists(folder)) GTEST_SKIP() << "needs $ATOM_SHARED/models";
  ModelOptions o;
  o.model = folder.string();
  o.dtype = "float32";
  o.max_model_len = 512;
  o.max_num_seqs = 1;
  follow(o, folder / "golden_mtp.json", 0.03);
}

// Trained as tests/mtp/train_mtp.py says; unlike random ones they are right about half of the time and more.
TEST(Speculation, FollowsTheTracesOfTrainedHybrids) {
  for (const char* name : {"qwen3_5", "qwen3_next"}) {
    const std::filesystem::path folder = std::filesystem::path(ATOM_TEST_DATA) / "mtp" / name;
    ModelOptions o;
    o.model = folder.string();
    o.dtype = "float32";
    o.max_model_len = 512;
    o.max_num_seqs = 1;
    follow(o, folder / "golden_mtp.json", 0.03);
  }
}

// SP-3: a drafter that passes the embedding of the next token through, before a model that looks at the last
// token alone. A shift by one token or a stale hidden state cannot be right at every depth.
TEST(Speculation, ADrafterThatKnowsTheModelIsAlwaysRight) {
  const std::vector<Request> requests = {request_of(prompt_of(9, 1), 30), request_of(prompt_of(22, 2), 30)};
  for (const int k : {1, 4}) {
    ModelOptions o = tiny("deepseek_v3_mtp_echo", k);
    o.max_num_batched_tokens = 8;
    for (const Answer& a : answers(o, requests)) {
      EXPECT_GT(a.usage.speculation.drafted, 0);
      EXPECT_EQ(a.usage.speculation.accepted, a.usage.speculation.drafted);
    }
  }
}

// Requests whose rules look at what came before.
std::vector<Request> all_sorts() {
  std::vector<Request> all;
  for (int i = 0; i < 7; ++i) all.push_back(request_of(prompt_of(5 + 6 * i, i), 24));
  all[1].sampling.temperature = 0.8f;
  all[1].sampling.seed = 11;
  all[1].sampling.logprobs = 2;
  all[2].sampling.temperature = 1.1f;
  all[2].sampling.seed = 12;
  all[2].sampling.top_p = .9f;
  all[2].n = 2;
  all[3].sampling.repetition_penalty = 1.3f;
  all[3].sampling.frequency_penalty = .2f;
  all[3].sampling.logprobs = 0;
  all[4].sampling.logit_bias = {{7, 3.f}, {9, -100.f}};
  all[4].sampling.temperature = .7f;
  all[4].sampling.seed = 3;
  all[5].max_tokens = 2;
  all[6].max_tokens = 1;
  return all;
}

TEST(Speculation, AnyNumberOfDraftsGivesTheTokensOfNone) {
  for (const char* name : kFamilies) {
    const std::vector<Answer> want = answers(tiny(name, 0), all_sorts());
    for (int k = 1; k <= 4; ++k) {
      const std::vector<Answer> got = answers(tiny(name, k), all_sorts());
      expect_same(got, want, std::string(name) + " k " + std::to_string(k));
      int64_t drafted = 0, right = 0;
      for (const Answer& a : got)
        drafted += a.usage.speculation.drafted, right += a.usage.speculation.accepted;
      EXPECT_GT(right, 0) << name;
      EXPECT_LT(right, drafted) << name;
    }
    expect_same(answers(tiny(name, {}), all_sorts()), want, std::string(name) + " adaptive");
  }
}

TEST(Speculation, ChunksBlocksAndRanksDoNotMatter) {
  struct Variant {
    int64_t batched_tokens, block_size;
    int tp, pp;
  };
  for (const char* name : kFamilies) {
    const std::vector<Answer> want = answers(tiny(name, 0), all_sorts());
    for (const Variant& v : {Variant{7, 4, 1, 1}, {13, 1, 2, 1}, {40, 16, 1, 2}, {24, 4, 2, 2}}) {
      ModelOptions o = tiny(name, 3);
      o.max_num_batched_tokens = v.batched_tokens;
      o.block_size = v.block_size;
      o.tp = v.tp;
      o.pp = v.pp;
      expect_same(
          answers(o, all_sorts()), want,
          fmt::format("{} chunk {} block {} tp {} pp {}", name, v.batched_tokens, v.block_size, v.tp, v.pp));
    }
  }
}

TEST(Speculation, PrefixHitsAndPreemptionGiveTheSameTokens) {
  for (const char* name : kFamilies) {
    std::vector<Request> requests;
    for (int i = 0; i < 5; ++i) requests.push_back(request_of(prompt_of(12, i), 20));
    requests[2].sampling.temperature = 1;
    requests[2].sampling.seed = 4;
    const std::vector<Answer> want = answers(tiny(name, 0), requests);
    LoadedModel model(tiny(name, 3));
    expect_same(answers(model.engine(), requests), want, name);
    const std::vector<Answer> again = answers(model.engine(), requests);
    expect_same(again, want, std::string(name) + " again");
    EXPECT_GT(again[0].usage.cached_tokens, 0) << name;

    ModelOptions scarce = tiny(name, 3, 36);
    LoadedModel sizes(scarce);
    const int64_t blocks = sizes.cache_plan().groups.front().blocks,
                  slot = sizes.cache_plan().states.slot_blocks;
    scarce.kv_cache_bytes = sizes.cache_plan().used_bytes / blocks * (2 * slot + 11);
    LoadedModel small(scarce);
    expect_same(answers(small.engine(), requests), want, std::string(name) + " with little memory");
    EXPECT_GT(small.engine().stats().scheduler.preemptions, 0) << name;
    EXPECT_EQ(small.engine().stats().scheduler.groups.front().used, 0) << name;
  }
}

// The end in the middle of what a step verified.
TEST(Speculation, NothingComesAfterTheEnd) {
  for (const char* name : {"deepseek_v3_mtp", "qwen3_5_mtp"}) {
    const std::vector<int32_t> free_run = answers(tiny(name, 0), {request_of(prompt_of(9, 2), 30)})[0].ids;
    LoadedModel model(tiny(name, 4));
    for (int64_t end = 1; end < 20; ++end) {
      const int32_t id = free_run[end];
      const auto first = std::find(free_run.begin(), free_run.end(), id) - free_run.begin();
      Request r = request_of(prompt_of(9, 2), 30);
      r.sampling.stop_ids = {id};
      Answer a = answers(model.engine(), {r})[0];
      EXPECT_EQ(a.ids, std::vector<int32_t>(free_run.begin(), free_run.begin() + first + 1)) << name;
      EXPECT_EQ(a.finish, FinishReason::stop);
      r.sampling.stop_ids.clear();
      r.max_tokens = end;
      a = answers(model.engine(), {r})[0];
      EXPECT_EQ(a.ids, std::vector<int32_t>(free_run.begin(), free_run.begin() + end)) << name;
      EXPECT_EQ(a.finish, FinishReason::length);
    }
    Request r = request_of(prompt_of(9, 2), 30);
    r.sampling.stop_ids = {free_run[3]};
    r.sampling.min_tokens = 12;
    expect_same(answers(model.engine(), {r}), answers(tiny(name, 0), {r}), std::string(name) + " min_tokens");
  }
}

// A tokenizer in which every id is one character, so that stop strings span tokens.
std::string letters() {
  Json vocab = Json::object();
  for (int i = 0; i < 94; ++i) vocab[std::string(1, static_cast<char>(33 + i))] = i;
  vocab["\u0120"] = 94;
  vocab["\u010a"] = 95;
  const Json bytes = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  return Json{{"version", "1.0"},
              {"added_tokens", Json::array()},
              {"pre_tokenizer", bytes},
              {"decoder", bytes},
              {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}}
      .dump();
}

TEST(Speculation, AStopStringThatSpansAcceptedTokensEndsTheText) {
  const testing::TestFolder folder;
  for (const char* file : {"config.json", "generation_config.json", "model.safetensors"}) {
    std::filesystem::copy_file(std::filesystem::path(tiny("deepseek_v3_mtp", 0).model) / file, folder / file);
  }
  folder.write("tokenizer.json", letters());
  const auto options = [&](int drafts) {
    ModelOptions o = tiny("deepseek_v3_mtp", drafts);
    o.model = folder.path().string();
    return o;
  };
  LoadedModel plain(options(0)), drafting(options(4));
  const std::string text = answers(plain.engine(), {request_of(prompt_of(9, 2), 30)})[0].text;
  ASSERT_EQ(text.size(), 30u);
  for (size_t at = 0; at + 3 <= 20; ++at) {
    for (const bool include : {false, true}) {
      Request r = request_of(prompt_of(9, 2), 30);
      r.stop = {text.substr(at, 3), "never this"};
      r.include_stop = include;
      r.sampling.min_tokens = static_cast<int32_t>(at % 3) * 4;
      const std::vector<Answer> want = answers(plain.engine(), {r});
      expect_same(answers(drafting.engine(), {r}), want, r.stop[0]);
    }
  }
}

TEST(Speculation, WhatIsCountedAddsUp) {
  LoadedModel model(tiny("deepseek_v3_mtp", 3));
  const std::vector<Answer> all =
      answers(model.engine(), {request_of(prompt_of(9, 1), 40), request_of(prompt_of(12, 2), 40)});
  SpeculationStats sum;
  for (const Answer& a : all) {
    const SpeculationStats& s = a.usage.speculation;
    // The first token comes from the prompt, each further step gives one and the drafts that were right.
    EXPECT_GE(1 + s.steps + s.accepted, 40 - 1);
    EXPECT_LE(s.drafted, 3 * s.steps);
    int64_t accepted = 0, drafted = 0;
    for (int64_t i = 0; i < kMaxDrafts; ++i) {
      accepted += s.accepted_by_position[i], drafted += s.drafted_by_position[i];
      if (i > 0) {
        EXPECT_LE(s.accepted_by_position[i], s.accepted_by_position[i - 1]);
      }
    }
    EXPECT_EQ(accepted, s.accepted);
    EXPECT_EQ(drafted, s.drafted);
    sum.add(s);
  }
  EXPECT_EQ(model.engine().stats().speculation.accepted, sum.accepted);
  EXPECT_EQ(model.engine().stats().speculation.drafted, sum.drafted);
}

std::string refusal(const ModelOptions& o) {
  try {
    LoadedModel model(o);
  } catch (const Error& e) {
    return e.message();
  }
  return "";
}

TEST(Speculation, AModelWithoutADrafterIsRefusedByName) {
  EXPECT_NE(refusal(tiny("llama_plain", 2)).find("--num-speculative-tokens 2"), std::string::npos);
  EXPECT_NE(refusal(tiny("deepseek_v3_groups", 2)).find("model.layers.3.*"), std::string::npos);
  EXPECT_EQ(refusal(tiny("llama_plain", 0)), "");
  EXPECT_EQ(refusal(tiny("llama_plain", {})), "");
}

}  // namespace
}  // namespace atom
