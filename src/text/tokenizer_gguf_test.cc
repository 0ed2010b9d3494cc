// Tests of tokenizers from GGUF vocabularies.
#include <gtest/gtest.h>

#include "base/json.h"
#include "text/tokenizer.h"
#include "text/tokenizer_gguf_pre.h"
#include "text/unicode_regex.h"

namespace atom::text {
namespace {

using Ids = std::vector<int32_t>;

GgufVocab gpt2() {
  GgufVocab vocab;
  vocab.model = "gpt2";
  vocab.pre = "smollm";
  vocab.tokens = {"<|end|>", "a", "b", "\u0120", "ab", "\u0120ab", "1", "11", "<tool>", "\u010A"};
  vocab.types = {3, 1, 1, 1, 1, 1, 1, 1, 4, 1};
  vocab.merges = {"a b", "\u0120 ab", "1 1"};
  vocab.eos = 0;
  return vocab;
}

GgufVocab sentencepiece() {
  GgufVocab vocab;
  vocab.model = "llama";
  vocab.tokens = {"<unk>", "<s>", "</s>",    "<0xC3>", "<0xA9>",   "\u2581",
                  "a",     "b",   "\u2581a", "ab",     "\u2581ab", "bb"};
  vocab.types = {2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1};
  vocab.scores = {0, 0, 0, 0, 0, -10, -11, -12, -3, -1, -2, -1};
  vocab.bos = 1;
  vocab.unk = 0;
  vocab.add_bos = true;
  return vocab;
}

TEST(GgufTokenizer, ReadsByteLevelVocabularies) {
  const auto tokenizer = Tokenizer::from_gguf(gpt2());
  EXPECT_EQ(tokenizer->encode("ab ab\n11<tool>"), (Ids{4, 5, 9, 6, 6, 8}));  // smollm splits digits
  EXPECT_EQ(tokenizer->encode("a<|end|>"), (Ids{1, 0}));
  EXPECT_EQ(tokenizer->encode("a?b"), (Ids{1, 2}));  // a byte without a token is left out
  EXPECT_EQ(tokenizer->decode(Ids{4, 5, 9, 0}, true).take(), "ab ab\n");
  GgufVocab vocab = gpt2();
  vocab.pre = "gpt-2";
  EXPECT_EQ(Tokenizer::from_gguf(vocab)->encode("11"), (Ids{7}));
}

TEST(GgufTokenizer, MergesSentencePiecesByScore) {
  const auto tokenizer = Tokenizer::from_gguf(sentencepiece());
  EXPECT_EQ(tokenizer->encode("ab"), (Ids{1, 10}));
  EXPECT_EQ(tokenizer->encode("abb"), (Ids{1, 10, 7}));  // equal scores: the leftmost pair first
  EXPECT_EQ(tokenizer->encode("a b"), (Ids{1, 8, 5, 7}));
  EXPECT_EQ(tokenizer->encode("\u00E9"), (Ids{1, 5, 3, 4}));
  EXPECT_EQ(tokenizer->encode("zz"), (Ids{1, 5, 0}));
  EXPECT_EQ(tokenizer->encode("a</s>a"),
            (Ids{1, 8, 2, 8}));  // the space prefix comes back behind a special token
  EXPECT_EQ(tokenizer->decode(Ids{1, 8, 5, 7, 3, 4}, true).take(), "a b\u00E9");
}

TEST(GgufTokenizer, LeavesTheSpacePrefixOutWhenToldSo) {
  GgufVocab vocab = sentencepiece();
  vocab.add_space_prefix = false;
  const auto tokenizer = Tokenizer::from_gguf(vocab);
  EXPECT_EQ(tokenizer->encode("ab"), (Ids{1, 9}));
  EXPECT_EQ(tokenizer->decode(Ids{8}, true).take(), " a");
}

TEST(GgufTokenizer, AcceptsRepeatedTokens) {
  GgufVocab vocab = gpt2();
  vocab.tokens.push_back("a");
  vocab.types.push_back(5);
  const auto tokenizer = Tokenizer::from_gguf(vocab);
  EXPECT_EQ(tokenizer->encode("a"), (Ids{1}));
  EXPECT_EQ(tokenizer->decode(Ids{10}, false).take(), "a");
}

TEST(GgufTokenizer, RefusesWhatDoesNotFit) {
  const auto refusal = [](const GgufVocab& vocab) {
    try {
      Tokenizer::from_gguf(vocab);
    } catch (const Error& e) {
      return e.message();
    }
    return std::string();
  };
  GgufVocab vocab = gpt2();
  vocab.pre = "martian";
  EXPECT_NE(refusal(vocab).find("\"martian\" is not a known pre-tokenizer; known ones: gpt-2"),
            std::string::npos);
  vocab = gpt2();
  vocab.model = "bert";
  EXPECT_NE(refusal(vocab).find("tokenizer.ggml.model"), std::string::npos);
  vocab = gpt2();
  vocab.merges.push_back("ab");
  EXPECT_NE(refusal(vocab).find("tokenizer.ggml.merges[3]"), std::string::npos);
  vocab.merges.back() = "b a";
  EXPECT_NE(refusal(vocab).find("tokenizer.ggml.merges[3]"), std::string::npos);
  vocab = gpt2();
  vocab.types.pop_back();
  EXPECT_NE(refusal(vocab).find("token_type"), std::string::npos);
  vocab = gpt2();
  vocab.eos = 10;
  EXPECT_NE(refusal(vocab).find("eos_token_id"), std::string::npos);
  vocab = sentencepiece();
  vocab.scores.pop_back();
  EXPECT_NE(refusal(vocab).find("scores"), std::string::npos);
  vocab = sentencepiece();
  vocab.bos = -1;
  EXPECT_NE(refusal(vocab).find("bos_token_id"), std::string::npos);
  EXPECT_NE(refusal({}), "");
}

TEST(GgufTokenizer, KnowsPreTokenizersByAllTheirNames) {
  for (const char* name :
       {"smollm", "llama-bpe", "llama3", "qwen2", "qwen35", "gpt-2", "default", "deepseek-v3", "gpt-4o",
        "tekken", "kimi-k2", "glm4", "falcon", "deepseek-coder"}) {
    for (const std::string_view pattern : gguf_pre_tokenizer(name).patterns)
      EXPECT_NO_THROW(UnicodeRegex(pattern, name));
  }
}

}  // namespace
}  // namespace atom::text
