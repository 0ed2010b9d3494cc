// Claims about the response parsers that hold for all formats, and about reasoning.
#include "text/response_parser.h"

#include <gtest/gtest.h>

#include <ctime>

#include "text/response_test_util.h"

namespace atom::text {
namespace {

using F = ResponseFormat;
using R = ReasoningFormat;

constexpr F kAllFormats[] = {F::plain,        F::hermes,       F::qwen3_coder,  F::deepseek_v3,
                             F::deepseek_v31, F::deepseek_v32, F::glm45,        F::harmony,
                             F::llama3_json,  F::mistral,      F::mistral_args, F::kimi_k2};

TEST(ResponseParser, TwoCallsAreTheSameHoweverTheTextIsCut) {
  const std::string text =
      "Hi<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}<\\n\\u00e9\"}}\n</tool_call>\n"
      "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
  const ParsedResponse got = parse_with_tools(F::hermes, text);
  EXPECT_EQ(got.content, "Hi");
  ASSERT_EQ(got.calls.size(), 2u);
  EXPECT_EQ(got.calls[0].name, "f");
  EXPECT_EQ(Json::parse(got.calls[0].arguments), Json({{"a", "}<\n\u00e9"}}));
  EXPECT_EQ(got.calls[1], (ParsedCall{"g", "{}", ""}));
}

TEST(ResponseParser, ANameComesOnceAndArgumentsStreamBehindIt) {
  const auto parser = make_response_parser(format_of(F::hermes), {test_tools(), true, false});
  using Kind = ResponseEvent::Kind;
  EXPECT_TRUE(parser->push("<tool_call>{\"name\": \"f\", \"argum").empty());
  EXPECT_EQ(parser->push("ents\": {\"a\": "),
            (std::vector<ResponseEvent>{{Kind::tool_start, "", 0, "f", ""},
                                        {Kind::tool_arguments, "{\"a\": ", 0}}));
  EXPECT_EQ(parser->push("\"x"), (std::vector<ResponseEvent>{{Kind::tool_arguments, "\"x", 0}}));
  EXPECT_EQ(parser->push("y\"}}</tool"), (std::vector<ResponseEvent>{{Kind::tool_arguments, "y\"}", 0}}));
  EXPECT_TRUE(parser->finish().empty());
}

TEST(ResponseParser, ContentStreamsUpToWhatMayBeMarkup) {
  const auto parser = make_response_parser(format_of(F::hermes), {test_tools(), true, false});
  using Kind = ResponseEvent::Kind;
  EXPECT_EQ(parser->push("a < b <too"), (std::vector<ResponseEvent>{{Kind::content, "a < b"}}));
  EXPECT_EQ(parser->push("th"), (std::vector<ResponseEvent>{{Kind::content, " <tooth"}}));
}

TEST(ResponseParser, TruncationKeepsTheNameAndTheBeginningOfTheArguments) {
  const std::string text = "Hi<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x";
  EXPECT_EQ(parse_with_tools(F::hermes, text), (ParsedResponse{"", "Hi", {{"f", "{\"a\": \"x", ""}}}));
}

TEST(ResponseParser, ATextCutBeforeTheNameIsCertainIsContent) {
  const std::string text = "Hi <tool_call>\n{\"name\": \"f";
  EXPECT_EQ(parse_with_tools(F::hermes, text), (ParsedResponse{"", text, {}}));
}

TEST(ResponseParser, UnknownNamesArePassedOn) {
  EXPECT_EQ(
      parse_with_tools(F::hermes, "<tool_call>{\"name\": \"nobody\", \"arguments\": {\"x\": 1}}</tool_call>")
          .calls,
      (std::vector<ParsedCall>{{"nobody", "{\"x\": 1}", ""}}));
}

TEST(ResponseParser, WithoutToolsMarkupIsContent) {
  const std::string texts[] = {"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n",
                               "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}]",
                               "{\"name\": \"f\", \"parameters\": {}}", "<tool_call>f\n</tool_call>",
                               "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"};
  for (const F format : kAllFormats) {
    for (const std::string& text : texts) {
      EXPECT_EQ(parse_every_way(format_of(format), {{}, true, false}, text), (ParsedResponse{"", text, {}}))
          << to_string(format);
      EXPECT_EQ(parse_every_way(format_of(format), {test_tools(), false, false}, text),
                (ParsedResponse{"", text, {}}))
          << to_string(format);
    }
  }
}

TEST(ResponseParser, PlainTextComesOutAsItIs) {
  const std::string texts[] = {"",
                               " ",
                               "\n\n",
                               "Hello",
                               "  a\n\n",
                               "1 < 2 > 0, <b>x</b> [x] {y} <",
                               "`<tool` \xE4\xB8\xAD",
                               "<|im_start|>",
                               "a\n</tool_call>"};
  for (const F format : kAllFormats) {
    for (const std::string& text : texts) {
      if (format == F::harmony && text.find_first_not_of(" \n") == std::string::npos)
        continue;  // a header's space
      EXPECT_EQ(parse_with_tools(format, text), (ParsedResponse{"", text, {}})) << to_string(format);
    }
  }
}

TEST(ResponseParser, ReasoningThatThePromptHasOpenedEndsAtTheTag) {
  EXPECT_EQ(parse_with_tools(F::hermes, "abc</think>\n\nHi", R::think, true),
            (ParsedResponse{"abc", "Hi", {}}));
  EXPECT_EQ(parse_with_tools(F::hermes, "\nabc\n</think>\n\nHi\n", R::think, true),
            (ParsedResponse{"abc", "Hi\n", {}}));
  EXPECT_EQ(parse_with_tools(F::hermes, "<think>\nabc</think>Hi", R::think, true),
            (ParsedResponse{"abc", "Hi", {}}));
}

TEST(ResponseParser, ReasoningThatTheModelOpensIsSplitOff) {
  EXPECT_EQ(parse_with_tools(F::hermes, "<think>\nabc\n\nd\n</think>\n\nHi", R::think),
            (ParsedResponse{"abc\n\nd", "Hi", {}}));
  EXPECT_EQ(parse_with_tools(F::glm45, "\n<think>abc</think>\nHi", R::think),
            (ParsedResponse{"abc", "Hi", {}}));
  EXPECT_EQ(parse_with_tools(F::mistral, "[THINK]abc[/THINK]Hi", R::mistral_think),
            (ParsedResponse{"abc", "Hi", {}}));
}

TEST(ResponseParser, AClosedReasoningInThePromptLeavesOnlyContent) {
  EXPECT_EQ(parse_with_tools(F::hermes, "Hi", R::think), (ParsedResponse{"", "Hi", {}}));
}

TEST(ResponseParser, ReasoningThatIsNeverClosedIsAllReasoning) {
  EXPECT_EQ(parse_with_tools(F::hermes, "abc <tool_call> d\n", R::think, true),
            (ParsedResponse{"abc <tool_call> d\n", "", {}}));
  EXPECT_EQ(parse_with_tools(F::hermes, "abc</thi", R::think, true), (ParsedResponse{"abc</thi", "", {}}));
}

TEST(ResponseParser, LaterThinkTagsAreContent) {
  EXPECT_EQ(parse_with_tools(F::hermes, "a</think>b<think>c</think>d", R::think, true),
            (ParsedResponse{"a", "b<think>c</think>d", {}}));
  EXPECT_EQ(parse_with_tools(F::hermes, "b <think>c</think>", R::think),
            (ParsedResponse{"", "b <think>c</think>", {}}));
}

TEST(ResponseParser, CallsFollowReasoning) {
  EXPECT_EQ(parse_with_tools(
                F::hermes,
                "<think>\nt\n</think>\n\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
                R::think),
            (ParsedResponse{"t", "", {{"g", "{}", ""}}}));
}

TEST(ResponseParser, TokensThatOnlyCallsHaveEndUnclosedReasoning) {
  EXPECT_EQ(parse_with_tools(F::kimi_k2,
                             "t\n<|tool_calls_section_begin|><|tool_call_begin|>functions.g:0"
                             "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
                             R::think, true),
            (ParsedResponse{"t", "", {{"g", "{}", "functions.g:0"}}}));
}

TEST(ResponseParser, TimeIsLinearInWhatLooksLikeMarkup) {
  const std::string hostile[] = {"<tool_call>{\"",
                                 "<",
                                 "<tool_call>",
                                 "\n",
                                 "[TOOL_CALLS]",
                                 "<function=f><parameter=s>\n",
                                 "{\"name\":\"",
                                 "<|start|>",
                                 "<think>",
                                 "<tool_call>f<arg_key>s</arg_key><arg_value>",
                                 "<|channel|>commentary to=functions.f<|message|>{"};
  for (const F format : kAllFormats) {
    for (const std::string& piece : hostile) {
      std::string text;
      while (text.size() < (200 << 10)) text += piece;
      const std::clock_t start = std::clock();
      ParsedResponse response;
      const auto parser = make_response_parser(format_of(format, R::think), {test_tools(), true, false});
      for (size_t at = 0; at < text.size(); at += 3)
        response.add(parser->push(std::string_view(text).substr(at, 3)));
      response.add(parser->finish());
      const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
      EXPECT_LT(seconds, 2.0) << to_string(format) << " " << piece;  // quadratic takes minutes
    }
  }
}

}  // namespace
}  // namespace atom::text
