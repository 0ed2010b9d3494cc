// Tests of UTF-8 stepping, repair, classes and normal forms.
#include "text/unicode.h"

#include <gtest/gtest.h>

#include "base/clock.h"

namespace atom::text {
namespace {

TEST(Utf8Step, AcceptsExactlyTheWellFormedCharacters) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(c, text);
    const Utf8Step step = utf8_step(text);
    ASSERT_EQ(step.kind, Utf8Step::character) << uint32_t{c};
    ASSERT_EQ(step.size, text.size()) << uint32_t{c};
    size_t pos = 0;
    ASSERT_EQ(uint32_t{read_utf8(text, pos)}, uint32_t{c});
  }
  for (const std::string_view bad : {"\x80", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xED\xA0\x80",
                                     "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_EQ(utf8_step(bad).kind, Utf8Step::ill_formed);
  }
}

TEST(Utf8Repair, PutsOneMarkPerLongestIllFormedPart) {
  EXPECT_EQ(repair_utf8("a\xE4\xB8z"), "a\uFFFDz");
  EXPECT_EQ(repair_utf8("\xE4\xB8\xE4\xB8\xAD"), "\uFFFD\u4E2D");
  EXPECT_EQ(repair_utf8("\xF0\x9F\x98"), "\uFFFD");
  EXPECT_EQ(repair_utf8("\xED\xA0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(repair_utf8("ok \u00E9"), "ok \u00E9");
}

TEST(Utf8Repair, GivesTheSameTextForEveryCut) {
  const std::string bytes = "a\xE4\xB8\xAD\xF0\x9F\x98\x80\xE4\xB8z\x80\xC3\xC3\xA9\xF0\x9F";
  for (const Utf8Repair::Mark mark : {Utf8Repair::Mark::part, Utf8Repair::Mark::byte}) {
    std::string whole;
    Utf8Repair once(mark);
    once.feed(bytes, whole);
    once.flush(whole);
    for (size_t first = 0; first <= bytes.size(); ++first) {
      for (size_t second = first; second <= bytes.size(); ++second) {
        std::string cut;
        Utf8Repair repair(mark);
        repair.feed(bytes.substr(0, first), cut);
        repair.feed(bytes.substr(first, second - first), cut);
        repair.feed(bytes.substr(second), cut);
        repair.flush(cut);
        ASSERT_EQ(cut, whole) << first << " " << second;
      }
    }
  }
}

TEST(Utf8Repair, CountsBytesWhereAsked) {
  std::string out;
  Utf8Repair repair(Utf8Repair::Mark::byte);
  repair.feed("\xE4\xB8", out);
  EXPECT_EQ(out, "");
  repair.flush(out);
  EXPECT_EQ(out, "\uFFFD\uFFFD");
}

TEST(Classes, FollowUnicode) {
  for (const char32_t c : {U' ', U'\t', U'\u0085', U'\u00A0', U'\u3000', U'\u2028'})
    EXPECT_TRUE(is_white_space(c));
  for (const char32_t c : {U'\u180E', U'\u200B', U'\u2060', U'a', U'\0'}) EXPECT_FALSE(is_white_space(c));
  for (const char32_t c : {U'a', U'_', U'7', U'\u0301', U'\u4E2D', U'\u200D'}) EXPECT_TRUE(is_word(c));
  for (const char32_t c : {U'-', U' ', U'\u00BD', U'\u2019'}) EXPECT_FALSE(is_word(c));
}

std::string normal(NormalForm form, std::string text) {
  normalize(form, text);
  return text;
}

TEST(Normalize, ComposesAndDecomposes) {
  EXPECT_EQ(normal(NormalForm::nfc, "e\u0301"), "\u00E9");
  EXPECT_EQ(normal(NormalForm::nfd, "\u00E9"), "e\u0301");
  EXPECT_EQ(normal(NormalForm::nfkc, "\uFB01\u00BD"), "fi1\u20442");
  EXPECT_EQ(normal(NormalForm::nfkd, "\u00B2\u00A8"), "2 \u0308");
  EXPECT_EQ(normal(NormalForm::nfc, "\u212B\u2126"), "\u00C5\u03A9");
}

TEST(Normalize, OrdersLongRunsOfMarksAsTheDefinitionSays) {
  // Marks of two classes in turn: all of the lower class come first, each class in its order.
  std::string mixed = "a", low, high;
  for (int i = 0; i < 100; ++i) {
    const char* above = i % 2 == 0 ? "\u0301" : "\u0300";
    const char* below = i % 3 == 0 ? "\u0316" : "\u0323";
    mixed += std::string(above) + below;
    high += above;
    low += below;
  }
  EXPECT_EQ(normal(NormalForm::nfd, mixed + "b"), "a" + low + high + "b");
  // The Tibetan vowels have class 0 but are made of marks.
  std::string vowels, first, second;
  for (int i = 0; i < 50; ++i) {
    vowels += "\u0F73";
    first += "\u0F71";
    second += "\u0F72";
  }
  EXPECT_EQ(normal(NormalForm::nfc, "\u0F40" + vowels), "\u0F40" + first + second);
}

TEST(Normalize, TakesLinearTimeOnMarks) {
  std::string marks;
  while (marks.size() < 1'000'000) marks += "\u0301\u0316";
  const int64_t start = now_us();
  normalize(NormalForm::nfc, marks);
  EXPECT_LT(seconds_since(start), 2);
}

TEST(Lowercase, IsPerCharacter) {
  std::string text = "ABC \u0130 \u03A3 \u01C5 \u1E9E";
  lowercase(text);
  EXPECT_EQ(text, "abc i\u0307 \u03C3 \u01C6 \u00DF");
}

}  // namespace
}  // namespace atom::text
