// Constrained requests: their texts are of the grammar, whatever is drafted, and nobody else notices.
#include <gtest/gtest.h>

#include "engine/test_answers.h"
#include "text/answer_grammar.h"
#include "text/grammar_test_util.h"

namespace atom {
namespace {

using Kind = text::ContentForm::Kind;

constexpr int32_t kStop = 95;

// Ids below 94 are the characters from ! on, 94 is a space, and 95 is no text.
std::string spelled(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) {
    if (id != kStop) text += id == 94 ? ' ' : static_cast<char>(33 + id);
  }
  return text;
}

std::shared_ptr<const text::TokenTrie> vocabulary() {
  static const std::shared_ptr<const text::TokenTrie> trie = [] {
    std::vector<std::string> tokens;
    for (int32_t id = 0; id < 96; ++id) tokens.push_back(spelled({id}));
    return std::make_shared<text::TokenTrie>(std::vector<std::string_view>(tokens.begin(), tokens.end()));
  }();
  return trie;
}

std::shared_ptr<text::GrammarMasks> masks_of(const text::ContentForm& form) {
  return std::make_shared<text::GrammarMasks>(text::content_grammar(form).take(), vocabulary());
}
std::shared_ptr<text::GrammarMasks> regex(const std::string& pattern) {
  return masks_of({Kind::regex, {}, pattern});
}
std::shared_ptr<text::GrammarMasks> record() {
  return masks_of({Kind::json_schema, Json::parse(R"({"type": "object", "required": ["name", "sizes"],
    "properties": {"name": {"type": "string", "maxLength": 5}, "ok": {"type": "boolean"},
    "sizes": {"type": "array", "minItems": 2, "maxItems": 3, "items": {"type": "integer", "minimum": 0, "maximum": 99}}}})"),
                   ""});
}

Request constrained(std::shared_ptr<text::GrammarMasks> grammar, int32_t salt) {
  Request r = request_of(prompt_of(9, salt), 80);
  r.grammar = std::move(grammar);
  return r;
}

bool is_text_of(const std::shared_ptr<text::GrammarMasks>& grammar, const std::vector<int32_t>& ids) {
  text::GrammarMatcher matcher(grammar);
  return matcher.accept(spelled(ids)) && matcher.can_end();
}

ModelOptions tiny(const std::string& name, std::optional<int> drafts = {}) {
  ModelOptions o = golden_model(name, 96, /*threads=*/1);
  o.num_speculative_tokens = drafts;
  return o;
}

// Greedy and drawn, samples, penalties, and neighbours without a grammar.
std::vector<Request> all_sorts() {
  std::vector<Request> all;
  for (int32_t i = 0; i < 4; ++i) all.push_back(constrained(record(), i));
  all[1].sampling.temperature = 1;
  all[1].sampling.seed = 7;
  all[2].sampling.temperature = 0.8F;
  all[2].sampling.seed = 8;
  all[2].n = 3;
  all[3].sampling.frequency_penalty = 1;
  all[3].sampling.logprobs = 2;
  all.push_back(request_of(prompt_of(12, 5), 30));
  all.push_back(constrained(regex("(ab|ba){3,12}!"), 6));
  all.push_back(constrained(
      masks_of({Kind::ebnf, {}, "root ::= \"(\" root? \")\" | \"x\" | \"[\" root root \"]\""}), 7));
  all.back().max_tokens = 40;
  return all;
}

TEST(Constraint, TextsAreOfTheGrammarAndTheSameWithAnyNumberOfDrafts) {
  for (const char* name : {"deepseek_v3_mtp", "qwen3_next_mtp", "glm4_moe_mtp"}) {
    const std::vector<Answer> want = answers(tiny(name, 0), all_sorts());
    ASSERT_EQ(want.size(), 9u);
    const auto json = record();
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_TRUE(is_text_of(json, want[i].ids)) << spelled(want[i].ids);
      EXPECT_TRUE(Json::accept(spelled(want[i].ids)));
      EXPECT_EQ(want[i].finish, FinishReason::stop);
    }
    EXPECT_TRUE(is_text_of(regex("(ab|ba){3,12}!"), want[7].ids)) << spelled(want[7].ids);
    for (int k = 1; k <= 4; ++k) {
      const std::vector<Answer> got = answers(tiny(name, k), all_sorts());
      expect_same(got, want, std::string(name) + " k " + std::to_string(k));
      int64_t right = 0;
      for (const size_t i : {0, 1, 2, 3, 4, 5, 7, 8}) right += got[i].usage.speculation.accepted;
      EXPECT_GT(right, 0) << name;
    }
  }
}

TEST(Constraint, NeighboursRanksAndLittleMemoryDoNotMatter) {
  const std::string name = "qwen3_next_mtp";
  const std::vector<Answer> want = answers(tiny(name, 0), all_sorts());
  const Request free_run = request_of(prompt_of(12, 5), 30);
  EXPECT_EQ(answers(tiny(name, 0), {free_run})[0].ids, want[6].ids);
  for (const auto& [tp, pp] : {std::pair(2, 1), std::pair(1, 2), std::pair(2, 2)}) {
    ModelOptions o = tiny(name, 3);
    o.tp = tp;
    o.pp = pp;
    expect_same(answers(o, all_sorts()), want, fmt::format("tp {} pp {}", tp, pp));
  }
  ModelOptions scarce = tiny(name, 3);
  LoadedModel sizes(scarce);
  const int64_t blocks = sizes.cache_plan().groups.front().blocks,
                slot = sizes.cache_plan().states.slot_blocks;
  scarce.kv_cache_bytes = sizes.cache_plan().used_bytes / blocks * (2 * slot + 26);
  LoadedModel small(scarce);
  expect_same(answers(small.engine(), all_sorts()), want, "with little memory");
  EXPECT_GT(small.engine().stats().scheduler.preemptions, 0);
}

TEST(Constraint, AStopTokenComesOnlyWhereTheTextMayEnd) {
  for (const int drafts : {0, 4}) {
    LoadedModel model(tiny("deepseek_v3_mtp", drafts));
    const auto ask = [&](const std::shared_ptr<text::GrammarMasks>& grammar, int32_t min_tokens) {
      Request r = constrained(grammar, 3);
      r.sampling.stop_ids = {kStop};
      r.sampling.logit_bias = {{kStop, 100.0F}};  // the model wants to stop at every place
      r.sampling.min_tokens = min_tokens;
      return answers(model.engine(), {r})[0];
    };
    const Answer whole = ask(record(), 0);
    EXPECT_TRUE(is_text_of(record(), whole.ids)) << spelled(whole.ids);
    const Answer shortest = ask(regex("[a-c]{2,}"), 0);
    EXPECT_EQ(shortest.ids.size(), 3u);
    EXPECT_EQ(shortest.ids.back(), kStop);
    EXPECT_EQ(shortest.finish, FinishReason::stop);
    EXPECT_EQ(ask(regex("[a-c]{2,}"), 20).ids.size(), 21u);
    EXPECT_EQ(spelled(ask(regex("ab"), 20).ids), "ab") << "nothing can follow";
    EXPECT_EQ(ask(regex(""), 2).ids, std::vector<int32_t>{kStop});
  }
}

TEST(Constraint, ATextThatNothingCanFollowEndsByItself) {
  for (const int drafts : {0, 4}) {
    LoadedModel model(tiny("deepseek_v3_mtp", drafts));
    const Answer a = answers(model.engine(), {constrained(regex("abcabcabc!"), 1)})[0];
    EXPECT_EQ(spelled(a.ids), "abcabcabc!");
    EXPECT_EQ(a.ids.size(), 10u);
    EXPECT_EQ(a.finish, FinishReason::stop);
    Request cut = constrained(regex("abcabcabc!"), 1);
    cut.max_tokens = 4;
    const Answer part = answers(model.engine(), {cut})[0];
    EXPECT_EQ(spelled(part.ids), "abca");
    EXPECT_EQ(part.finish, FinishReason::length);
  }
}

TEST(Constraint, AGrammarThatTheVocabularyCannotSpellFailsItsRequestAlone) {
  LoadedModel model(tiny("deepseek_v3_mtp", 2));
  const std::vector<Answer> got =
      answers(model.engine(), {constrained(regex("ab\n"), 1), request_of(prompt_of(9, 2), 10)});
  EXPECT_EQ(got[0].finish, FinishReason::failed);
  EXPECT_NE(got[0].error.find("vocabulary"), std::string::npos) << got[0].error;
  EXPECT_EQ(got[1].finish, FinishReason::length);
  EXPECT_EQ(got[1].ids.size(), 10u);
}

TEST(Constraint, AGrammarWithTooManyReadingsFailsItsRequestAlone) {
  const auto hostile = masks_of({Kind::ebnf, {}, text::too_ambiguous()});
  std::vector<Request> requests = {constrained(hostile, 1), request_of(prompt_of(9, 2), 10),
                                   constrained(record(), 3)};
  requests[0].sampling.logit_bias = {{'x' - '!', 100.0F}, {'Q' - '!', 100.0F}};
  for (const char* name : {"deepseek_v3_mtp", "qwen3_next_mtp"}) {
    const std::vector<Answer> want = answers(tiny(name, 0), {requests[1], requests[2]});
    for (const int drafts : {0, 1, 4}) {
      const std::vector<Answer> got = answers(tiny(name, drafts), requests);
      ASSERT_EQ(got.size(), 3u);
      EXPECT_EQ(spelled(got[0].ids), "x");
      EXPECT_EQ(got[0].finish, FinishReason::failed);
      EXPECT_NE(got[0].error.find("too many readings"), std::string::npos) << got[0].error;
      expect_same({got[1], got[2]}, want, name);
    }
  }
}

TEST(Constraint, AVocabularyLargerThanTheModelsIsRefused) {
  LoadedModel model(tiny("deepseek_v3_mtp", 0));
  const std::vector<std::string_view> tokens(200, "a");
  const auto trie = std::make_shared<text::TokenTrie>(tokens);
  Request r = request_of(prompt_of(9, 2), 10);
  r.grammar =
      std::make_shared<text::GrammarMasks>(text::content_grammar({Kind::regex, {}, "a"}).take(), trie);
  EXPECT_FALSE(model.engine().submit(std::move(r), [](OutputDelta&&) {}).ok());
}

}  // namespace
}  // namespace atom
