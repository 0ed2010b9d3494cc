// Tests with the tokenizers of real checkpoints. The environment variable ATOM_TOKENIZERS names a folder that
// holds qwen3/tokenizer.json and so on; without it these tests are skipped.
#include <gtest/gtest.h>
#include <pthread.h>

#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <random>

#include "base/json.h"
#include "text/tokenizer.h"

namespace atom::text {
namespace {

using Ids = std::vector<int32_t>;

const char* folder() { return std::getenv("ATOM_TOKENIZERS"); }

const Tokenizer& real(const std::string& name) {
  static std::map<std::string, std::unique_ptr<Tokenizer>> loaded;
  std::unique_ptr<Tokenizer>& tokenizer = loaded[name];
  if (tokenizer == nullptr)
    tokenizer = Tokenizer::from_file(std::string(folder()) + "/" + name + "/tokenizer.json");
  return *tokenizer;
}

Ids bare(const std::string& name, std::string_view text) {
  return real(name).encode(text, {.add_special_tokens = false});
}

double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

#define NEEDS_FILES() \
  if (folder() == nullptr) GTEST_SKIP() << "ATOM_TOKENIZERS is not set"

TEST(RealTokenizers, TakeWholeWordsAndMergesOfBothFormats) {
  NEEDS_FILES();
  EXPECT_EQ(bare("llama3_1", " jeho"), (Ids{101503}));
  EXPECT_EQ(bare("llama3_1", " milyon"), (Ids{107667}));
  EXPECT_EQ(bare("llama3_1", "mektedir"), (Ids{102909}));
  EXPECT_EQ(bare("llama3_1", " olsun"), (Ids{110642}));
  EXPECT_EQ(bare("qwen3", "->"), (Ids{405}));
  EXPECT_EQ(bare("gptoss", "->"), (Ids{609}));
  EXPECT_EQ(bare("deepseek_v3", "->"), (Ids{2105}));
  EXPECT_EQ(bare("llama3_1", "->"), (Ids{405}));
}

TEST(RealTokenizers, CutWordsAsEachFamilyDoes) {
  NEEDS_FILES();
  struct Case {
    const char* text;
    Ids qwen3, deepseek_v3, gptoss, llama3_1;
  };
  const Case cases[] = {
      {"12345", {16, 17, 18, 19, 20}, {6895, 1883}, {7633, 2548}, {4513, 1774}},
      {"1234567", {16, 17, 18, 19, 20, 21, 22}, {6895, 18009, 25}, {7633, 19354, 22}, {4513, 10961, 22}},
      {"(x):\n", {2075, 982}, {4042, 3395}, {4061, 1883}, {2120, 997}},
      {"I'M can't", {40, 27603, 646, 944}, {43, 125845, 588, 1664}, {40, 95346, 8535}, {40, 28703, 649, 956}},
      {"a\n\n\n b", {64, 1406, 293}, {67, 6328, 291}, {64, 2499, 287}, {64, 1432, 293}},
      {"a\r\nb", {64, 319, 65}, {67, 204, 201, 68}, {64, 370, 65}, {64, 319, 65}},
      {"   x", {256, 856}, {262, 1527}, {256, 1215}, {256, 865}},
      {"\u00A0x", {4102, 87}, {2162, 90}, {5310, 87}, {4194, 87}},
      {"don\u2019t", {15007, 1405}, {20385, 442, 86}, {22130, 1573}, {15357, 1431}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(bare("qwen3", c.text), c.qwen3) << c.text;
    EXPECT_EQ(bare("deepseek_v3", c.text), c.deepseek_v3) << c.text;
    EXPECT_EQ(bare("gptoss", c.text), c.gptoss) << c.text;
    EXPECT_EQ(bare("llama3_1", c.text), c.llama3_1) << c.text;
  }
}

TEST(RealTokenizers, FindAddedTokens) {
  NEEDS_FILES();
  EXPECT_EQ(bare("qwen3", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"),
            (Ids{151644, 872, 198, 6023, 151645, 198, 151644, 77091, 198}));
  EXPECT_EQ(bare("gptoss", "<|start|>user<|message|>hi<|end|><|start|>assistant"),
            (Ids{200006, 1428, 200008, 3686, 200007, 200006, 173781}));
  EXPECT_EQ(bare("deepseek_v3",
                 "<\uFF5Cbegin\u2581of\u2581sentence\uFF5C><\uFF5CUser\uFF5C>hi<\uFF5CAssistant\uFF5C>"),
            (Ids{0, 128803, 6366, 128804}));
  EXPECT_EQ(bare("qwen3", "<think>\n"), (Ids{151667, 198}));
  EXPECT_EQ(bare("llama3_1", "<think>\n"), (Ids{14023, 771, 397}));
  EXPECT_EQ(bare("qwen3", "<tool_call>"), (Ids{151657}));
  EXPECT_EQ(bare("deepseek_v3", "<tool_call>"), (Ids{30, 72461, 112042, 32}));
}

TEST(RealTokenizers, NeverMakeASpecialTokenFromUserText) {
  NEEDS_FILES();
  for (const char* name : {"qwen3", "deepseek_v3", "llama3_1", "llama2", "gptoss"}) {
    const Tokenizer& tokenizer = real(name);
    for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
      if (!tokenizer.is_special(id)) continue;
      const Ids ids = tokenizer.encode(tokenizer.id_to_token(id),
                                       {.add_special_tokens = false, .special_in_text = false});
      for (const int32_t part : ids) EXPECT_FALSE(tokenizer.is_special(part)) << name << " " << id;
    }
  }
}

std::string repeat(std::string_view unit, size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += unit;
  return out;
}

// Runs on a thread with a small stack: nothing may recurse with the length of the text.
void on_small_stack(const std::function<void()>& work) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 512 << 10);
  pthread_t thread{};
  const auto run = [](void* arg) -> void* {
    (*static_cast<const std::function<void()>*>(arg))();
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, const_cast<std::function<void()>*>(&work)), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST(RealTokenizers, TakeLinearTimeOnLongRuns) {
  NEEDS_FILES();
  std::mt19937 random(1);
  std::string base64;
  while (base64.size() < 1'000'000) {
    base64 += "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[random() % 64];
  }
  on_small_stack([&] {
    for (const char* name : {"qwen3", "deepseek_v3", "llama3_1", "llama2", "gptoss"}) {
      const Tokenizer& tokenizer = real(name);
      for (const char* unit : {"A", " ", "\n", "-", "\u4E2D", "\U0001F600", "(", "\u0301", ""}) {
        const std::string text = *unit == '\0' ? base64 : repeat(unit, 1'000'000);
        const auto time = [&](size_t bytes) {
          const double start = cpu_seconds();
          const Ids ids =
              tokenizer.encode(std::string_view(text).substr(0, bytes), {.add_special_tokens = false});
          const double seconds = cpu_seconds() - start;
          if (bytes == text.size()) {
            EXPECT_EQ(tokenizer.decode(ids, false).take(), text) << name << " " << unit;
          }
          return seconds;
        };
        // Four times the text may take 2.5 squared times as long. The quickest of three: the machine may be
        // busy.
        const size_t quarter = text.size() / 4 / 12 * 12;  // whole characters
        double whole = time(text.size()), part = time(quarter);
        for (int i = 0; i < 2 && whole > 6.25 * part; ++i) {
          whole = std::min(whole, time(text.size()));
          part = std::min(part, time(quarter));
        }
        EXPECT_LT(whole, 2) << name << " " << unit;
        EXPECT_LT(whole, 6.25 * part + 0.05) << name << " " << unit;
      }
    }
  });
}

}  // namespace
}  // namespace atom::text
