// Tests of finding added tokens.
#include "text/added_tokens.h"

#include <gtest/gtest.h>

namespace atom::text {
namespace {

using Cut = std::vector<std::pair<int32_t, std::string>>;

Cut cut(const std::vector<AddedToken>& tokens, std::string_view text, bool special_in_text = true) {
  std::vector<std::string> contents;
  for (const AddedToken& token : tokens) contents.push_back(token.content);
  const AddedTokens added(tokens, contents);
  std::vector<AddedTokens::Section> sections;
  added.cut(text, false, special_in_text, sections);
  Cut out;
  for (const auto& s : sections) out.emplace_back(s.id, text.substr(s.begin, s.end - s.begin));
  return out;
}

TEST(AddedTokens, TakesTheLongestAtTheLeftmostPlace) {
  const std::vector<AddedToken> tokens = {{.id = 5, .content = "<a>"}, {.id = 6, .content = "<a><b>"}};
  EXPECT_EQ(cut(tokens, "<a><b>"), (Cut{{6, "<a><b>"}}));
  EXPECT_EQ(cut(tokens, "x<a><a><b"), (Cut{{-1, "x"}, {5, "<a>"}, {5, "<a>"}, {-1, "<b"}}));
  EXPECT_EQ(cut(tokens, ""), Cut{});
}

TEST(AddedTokens, StripsWhiteSpaceBesideThem) {
  EXPECT_EQ(cut({{.id = 1, .content = "<r>", .rstrip = true}}, "a <r> \n\u3000b"),
            (Cut{{-1, "a "}, {1, "<r> \n\u3000"}, {-1, "b"}}));
  EXPECT_EQ(cut({{.id = 1, .content = "<l>", .lstrip = true}}, "a \t<l> b"),
            (Cut{{-1, "a"}, {1, " \t<l>"}, {-1, " b"}}));
  EXPECT_EQ(cut({{.id = 1, .content = "<x>", .lstrip = true, .rstrip = true}}, " <x>  <x> "),
            (Cut{{1, " <x>  "}, {1, "<x> "}}));
}

TEST(AddedTokens, RespectsSingleWords) {
  const std::vector<AddedToken> tokens = {{.id = 1, .content = "ab", .single_word = true}};
  EXPECT_EQ(cut(tokens, "xabx"), (Cut{{-1, "xabx"}}));
  EXPECT_EQ(cut(tokens, "ab-ab"), (Cut{{1, "ab"}, {-1, "-"}, {1, "ab"}}));
  EXPECT_EQ(cut(tokens, "ab\u0301 \u00E9ab"), (Cut{{-1, "ab\u0301 \u00E9ab"}}));
}

TEST(AddedTokens, LeavesSpecialOnesAloneWhenAsked) {
  const std::vector<AddedToken> tokens = {{.id = 1, .content = "<s>", .special = true},
                                          {.id = 2, .content = "<t>"}};
  EXPECT_EQ(cut(tokens, "<s><t>", false), (Cut{{-1, "<s>"}, {2, "<t>"}}));
  EXPECT_EQ(cut(tokens, "<s><t>", true), (Cut{{1, "<s>"}, {2, "<t>"}}));
}

}  // namespace
}  // namespace atom::text
