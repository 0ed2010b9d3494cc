// Tests of patterns in Oniguruma syntax.
#include "text/unicode_regex.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"

namespace atom::text {
namespace {

std::vector<std::string> matches(std::string_view pattern, std::string_view text) {
  const UnicodeRegex regex(pattern, "test");
  RegexScratch scratch;
  UnicodeRegex::Matches found(regex, text, scratch);
  std::vector<std::string> out;
  for (size_t begin, end; found.next(begin, end);) out.emplace_back(text.substr(begin, end - begin));
  return out;
}
using Strings = std::vector<std::string>;

TEST(UnicodeRegex, KnowsUnicodeClasses) {
  EXPECT_EQ(matches(R"(\p{L}+)", "caf\u00E9 \u4E2D1"), (Strings{"caf\u00E9", "\u4E2D"}));
  EXPECT_EQ(matches(R"(\s)", "a\u0085b\u180E\u3000"), (Strings{"\u0085", "\u3000"}));
  EXPECT_EQ(matches(R"([^\s]+)", "a\u00A0b\u180E"), (Strings{"a", "b\u180E"}));
  EXPECT_EQ(matches(R"([\S]+|[\D]\d)", "a\u3000b 1"), (Strings{"a", "b", " 1"}));
  EXPECT_EQ(matches(R"(\w+)", "e\u0301_\u24B6-\u00BC"), (Strings{"e\u0301_\u24B6"}));
  EXPECT_EQ(matches(R"([\W]+)", "a-+b"), (Strings{"-+"}));
  EXPECT_EQ(matches(R"(\h+)", "xfF09g"), (Strings{"fF09"}));
  EXPECT_EQ(matches(R"([[:space:]]|[[:punct:]])", "a\u180E b$"), (Strings{" ", "$"}));
  EXPECT_EQ(matches(R"(\p{Letter}+|\p{^L})", "ab1"), (Strings{"ab", "1"}));
}

TEST(UnicodeRegex, TakesAScriptWithoutItsExtensions) {
  EXPECT_EQ(matches(R"(\p{Han}+)", "\u4E2D\u3001\u6587"), (Strings{"\u4E2D", "\u6587"}));
}

TEST(UnicodeRegex, DoesClassAlgebra) {
  EXPECT_EQ(matches(R"([\p{L}&&[^\p{Han}]]+)", "ab\u4E2Dc"), (Strings{"ab", "c"}));
  EXPECT_EQ(matches("[a[x-z]]+", "axbzy"), (Strings{"ax", "zy"}));
  EXPECT_EQ(matches("[a-z&&[^aeiou]&&[^x-z]]+", "bcaxd"), (Strings{"bc", "d"}));
  EXPECT_EQ(matches(R"([^[\n\x{62}\u0063]]+)", "abcd\ne"), (Strings{"a", "d", "e"}));
  EXPECT_EQ(matches(R"([a&&b])", "ab"), Strings{});
}

TEST(UnicodeRegex, ReadsRepeatsAsOnigurumaDoes) {
  EXPECT_EQ(matches(R"(\d{1,2}+x)", "12345x"),
            (Strings{"12345x"}));  // a repeated repeat, not a possessive one
  EXPECT_EQ(matches("a{,2}b", "aaab"), (Strings{"aab"}));
  EXPECT_EQ(matches("a{x}", "a{x}"), (Strings{"a{x}"}));
  EXPECT_EQ(matches("(ab){2}?c", "ababc c"), (Strings{"ababc", "c"}));  // optional, not lazy
  EXPECT_EQ(matches("a++b|a", "aaab"), (Strings{"aaab"}));
}

TEST(UnicodeRegex, MatchesLinesAndFoldsCase) {
  EXPECT_EQ(matches("^.|.$", "ab\ncd"), (Strings{"a", "b", "c", "d"}));
  EXPECT_EQ(matches("(?i:'s)x", "'Sx '\u017Fx 'sX"), (Strings{"'Sx", "'\u017Fx"}));
}

TEST(UnicodeRegex, SkipsAnEmptyMatchBehindAMatch) {
  EXPECT_EQ(matches("x*", "axxb"), (Strings{"", "xx", ""}));
  EXPECT_EQ(matches("", "\u4E2D"), (Strings{"", ""}));
}

TEST(UnicodeRegex, LiteralMatchesItself) {
  const UnicodeRegex regex = UnicodeRegex::literal(".*\u2581", "test");
  RegexScratch scratch;
  UnicodeRegex::Matches found(regex, "x.*\u2581.a", scratch);
  size_t begin = 0, end = 0;
  ASSERT_TRUE(found.next(begin, end));
  EXPECT_EQ(begin, 1u);
  EXPECT_EQ(end, 6u);
  EXPECT_FALSE(found.next(begin, end));
}

TEST(UnicodeRegex, RefusesWhatItCannotCarryOver) {
  for (const char* pattern : {"(",
                              "a)",
                              "[a",
                              "[a&&",
                              "[",
                              "\\",
                              "(?m:.)",
                              "(?i",
                              "(*UTF)a",
                              "\\Qa",
                              "[[:foo:]]",
                              "\\p{Nope}",
                              "\\p",
                              "\\u12",
                              "\\ud800",
                              "[z-a]",
                              "a{2,1}",
                              "(?#x)",
                              "[\\x{110000}&&a]",
                              "[a&&\\p{Nope}]",
                              "(?<n",
                              "\\x{"}) {
    EXPECT_THROW(UnicodeRegex(pattern, "here"), Error) << pattern;
  }
  try {
    UnicodeRegex("a(", "file: pre_tokenizer.pattern");
    FAIL();
  } catch (const Error& e) {
    EXPECT_TRUE(e.message().starts_with("file: pre_tokenizer.pattern: ")) << e.message();
    EXPECT_EQ(e.code(), Errc::invalid);
  }
}

// A class at the end, because a literal that the text lacks is seen before anything is tried.
TEST(UnicodeRegex, BoundsBacktracking) { EXPECT_THROW(matches("(a|a)*[bc]", std::string(40, 'a')), Error); }

}  // namespace
}  // namespace atom::text
