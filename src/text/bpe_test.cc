// Tests of the vocabulary, the merge table and the merge loop.
#include "text/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/clock.h"

namespace atom::text {
namespace {

TEST(Vocab, FindsWhatWasAdded) {
  Vocab vocab;
  std::vector<std::string> texts;
  for (int i = 0; i < 5000; ++i)
    texts.push_back(std::string(static_cast<size_t>(i % 40), 'x') + std::to_string(i));
  for (size_t i = 0; i < texts.size(); ++i) {
    ASSERT_EQ(vocab.add(texts[i], static_cast<int32_t>(i * 2)), Vocab::Added::ok);
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    ASSERT_EQ(vocab.find(texts[i]), static_cast<int32_t>(i * 2));
    ASSERT_EQ(vocab.text(static_cast<int32_t>(i * 2)), texts[i]);
  }
  EXPECT_EQ(vocab.find("absent"), kNoToken);
  EXPECT_EQ(vocab.size(), 9999);
  EXPECT_FALSE(vocab.has(1));
  EXPECT_FALSE(vocab.has(-1));
  EXPECT_FALSE(vocab.has(9999));
}

TEST(Vocab, ReportsDuplicates) {
  Vocab vocab;
  EXPECT_EQ(vocab.add("a", 3), Vocab::Added::ok);
  EXPECT_EQ(vocab.add("b", 3), Vocab::Added::id_taken);
  EXPECT_EQ(vocab.add("a", 7), Vocab::Added::text_taken);
  EXPECT_EQ(vocab.find("a"), 3);
  EXPECT_EQ(vocab.text(7), "a");
  EXPECT_EQ(vocab.find("b"), kNoToken);
}

TEST(MergeTable, KeepsTheLastRuleOfAPair) {
  MergeTable table;
  EXPECT_EQ(table.find(1, 2).rank, UINT32_MAX);
  table.build(std::vector<Merge>{{1, 2, 5, 0}, {2, 1, 6, 1}, {1, 2, 7, 2}});
  EXPECT_EQ(table.find(1, 2).merged, 7);
  EXPECT_EQ(table.find(1, 2).rank, 2u);
  EXPECT_EQ(table.find(2, 1).merged, 6);
  EXPECT_EQ(table.find(2, 2).rank, UINT32_MAX);
}

// A random model over the letters a to d.
struct Model {
  Vocab vocab;
  std::vector<Merge> merges;
};
Model random_model(uint32_t seed, int rules, bool equal_ranks) {
  std::mt19937 random(seed);
  Model model;
  for (int32_t id = 0; id < 4; ++id) model.vocab.add(std::string(1, static_cast<char>('a' + id)), id);
  while (static_cast<int>(model.merges.size()) < rules) {
    const auto left = static_cast<int32_t>(random() % static_cast<uint32_t>(model.vocab.size()));
    const auto right = static_cast<int32_t>(random() % static_cast<uint32_t>(model.vocab.size()));
    const std::string text = std::string(model.vocab.text(left)) + std::string(model.vocab.text(right));
    if (text.size() > 24) continue;
    int32_t merged = model.vocab.find(text);
    if (merged == kNoToken) model.vocab.add(text, merged = model.vocab.size());
    const auto rank = static_cast<uint32_t>(equal_ranks ? model.merges.size() / 3 : model.merges.size());
    model.merges.push_back({left, right, merged, rank});
  }
  return model;
}

// The definition: again and again the leftmost pair of the lowest rank.
std::vector<int32_t> naive(const Model& model, std::string_view word) {
  std::vector<int32_t> ids;
  for (const char c : word) ids.push_back(model.vocab.find(std::string_view(&c, 1)));
  for (;;) {
    const Merge* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const Merge* rule = nullptr;  // of rules for one pair the last counts
      for (const Merge& m : model.merges) {
        if (m.left == ids[i] && m.right == ids[i + 1]) rule = &m;
      }
      if (rule != nullptr && (best == nullptr || rule->rank < best->rank)) {
        best = rule;
        at = i;
      }
    }
    if (best == nullptr) return ids;
    ids[at] = best->merged;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(Bpe, EqualsTheDefinitionForShortAndLongWords) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    const Model model = random_model(seed, 40, seed % 2 == 1);
    const Bpe bpe(model.vocab, model.merges, {}, {});
    BpeScratch scratch;
    std::mt19937 random(seed + 1000);
    for (int i = 0; i < 60; ++i) {
      std::string word;
      const size_t size = i % 3 == 0 ? random() % 12 : random() % 150;
      const uint32_t letters = 1 + random() % 4;
      while (word.size() < size) word.push_back(static_cast<char>('a' + random() % letters));
      std::vector<int32_t> ids;
      bpe.encode(word, ids, scratch);
      ASSERT_EQ(ids, naive(model, word)) << seed << " " << word;
      ids.clear();
      bpe.encode(word, ids, scratch);  // now from the cache
      ASSERT_EQ(ids, naive(model, word));
    }
  }
}

TEST(Bpe, NeverMakesASpecialToken) {
  Vocab vocab;
  for (const char* text : {"a", "b", "ab"}) vocab.add(text, vocab.size());
  const std::vector<Merge> merges = {{0, 1, 2, 0}};
  BpeScratch scratch, scratch2;
  std::vector<int32_t> ids;
  Bpe(vocab, merges, {}, {}).encode("ab", ids, scratch);
  EXPECT_EQ(ids, (std::vector<int32_t>{2}));
  ids.clear();
  Bpe(vocab, merges, {.ignore_merges = true}, {2}).encode("ab", ids, scratch2);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 1}));
}

TEST(Bpe, TakesLinearTimeOnOneHugeWord) {
  const Model model = random_model(7, 60, false);
  const Bpe bpe(model.vocab, model.merges, {}, {});
  BpeScratch scratch;
  for (const char* unit : {"a", "ab", "abcd", "aab"}) {
    std::string word;
    while (word.size() < 1'000'000) word += unit;
    std::vector<int32_t> ids;
    const int64_t start = now_us();
    bpe.encode(word, ids, scratch);
    EXPECT_LT(seconds_since(start), 2) << unit;
  }
}

}  // namespace
}  // namespace atom::text
