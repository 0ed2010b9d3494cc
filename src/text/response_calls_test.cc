// Claims about each format's tool calls, by texts that models write.
#include <gtest/gtest.h>

#include "text/response_parser.h"
#include "text/response_test_util.h"

namespace atom::text {
namespace {

using F = ResponseFormat;
using Calls = std::vector<ParsedCall>;

TEST(HermesCalls, KeysMayComeInAnyOrderAndArgumentsMayBeText) {
  EXPECT_EQ(
      parse_with_tools(F::hermes, "<tool_call>{\"arguments\": {\"a\": [1, {}]}, \"name\": \"f\"}</tool_call>")
          .calls,
      (Calls{{"f", "{\"a\": [1, {}]}", ""}}));
  EXPECT_EQ(parse_with_tools(F::hermes,
                             "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>")
                .calls,
            (Calls{{"f", "{\"a\": 1}", ""}}));
  EXPECT_EQ(parse_with_tools(F::hermes, "<tool_call>{\"name\": \"g\"}</tool_call>").calls,
            (Calls{{"g", "{}", ""}}));
  EXPECT_EQ(
      parse_with_tools(
          F::hermes, "<tool_call>{\"type\": \"function\", \"name\": \"g\", \"arguments\": null}</tool_call>")
          .calls,
      (Calls{{"g", "{}", ""}}));
}

TEST(HermesCalls, RawControlCharactersAreEscaped) {
  EXPECT_EQ(parse_with_tools(F::hermes,
                             "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"a\n\tb\"}}</tool_call>")
                .calls,
            (Calls{{"f", "{\"s\": \"a\\n\\tb\"}", ""}}));
}

TEST(HermesCalls, WhatIsNoCallIsContent) {
  for (const char* text :
       {"<tool_call>", "<tool_call>no</tool_call>", "<tool_call>\n{\"name\": 1}\n</tool_call>",
        "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"x\"}</tool_call>",
        "<tool_call>{\"foo\": 1, \"name\": \"f\"}</tool_call>", "<tool_call>{}</tool_call>",
        "<tool_call>{\"name\" \"f\"}</tool_call>", "a\n<tool_call> <tool_call> b"}) {
    EXPECT_EQ(parse_with_tools(F::hermes, text), (ParsedResponse{"", text, {}}));
  }
}

TEST(HermesCalls, ACallMayFollowWhatIsNone) {
  EXPECT_EQ(parse_with_tools(F::hermes, "<tool_call>hm <tool_call>{\"name\": \"g\"}</tool_call>"),
            (ParsedResponse{"", "<tool_call>hm", {{"g", "{}", ""}}}));
}

TEST(HermesCalls, BrokenJsonBehindTheNameIsContent) {
  EXPECT_EQ(
      parse_with_tools(F::hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": oops}}</tool_call>"),
      (ParsedResponse{"", "oops}}</tool_call>", {{"f", "{\"a\": ", ""}}}));
}

TEST(HermesCalls, AMissingBraceOrClosingTagDoesNotHurt) {
  EXPECT_EQ(
      parse_with_tools(F::hermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}\n</tool_call>"),
      (ParsedResponse{"", "", {{"f", "{\"a\": 1}", ""}}}));
  EXPECT_EQ(parse_with_tools(F::hermes, "<tool_call>{\"name\": \"g\"}\n<tool_call>{\"name\": \"g\"}\n"),
            (ParsedResponse{"", "", {{"g", "{}", ""}, {"g", "{}", ""}}}));
}

TEST(HermesCalls, TextAroundCallsStaysContent) {
  EXPECT_EQ(parse_with_tools(F::hermes, "Wait.\n\n<tool_call>{\"name\": \"g\"}</tool_call>\n\nDone. "),
            (ParsedResponse{"", "Wait.\n\nDone. ", {{"g", "{}", ""}}}));
}

TEST(QwenCalls, ArgumentsHaveTheTypesOfTheSchema) {
  const std::string text =
      "I "
      "look.\n\n<tool_call>\n<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=n>\n12.50\n</"
      "parameter>\n"
      "<parameter=b>\nTrue\n</parameter>\n<parameter=list>\n[1, \"a\"]\n</parameter>\n<parameter=o>\n{\"k\": "
      "null}\n"
      "</parameter>\n<parameter=maybe>\nnull\n</parameter>\n<parameter=any>\nhello\n</parameter>\n</"
      "function>\n</tool_call>";
  EXPECT_EQ(parse_with_tools(F::qwen3_coder, text),
            (ParsedResponse{
                "",
                "I look.",
                {{"f",
                  "{\"s\": \"12\", \"n\": 12.50, \"b\": true, \"list\": [1, \"a\"], \"o\": {\"k\": null}, "
                  "\"maybe\": null, \"any\": \"hello\"}",
                  ""}}}));
}

TEST(QwenCalls, StringsKeepTheirLinesAndQuotes) {
  EXPECT_EQ(
      parse_with_tools(F::qwen3_coder,
                       "<tool_call>\n<function=f>\n<parameter=s>\n\n if (a < b && \"c\") {\n</parameter >\n\n"
                       "</parameter>\n</function>\n</tool_call>")
          .calls,
      (Calls{{"f", "{\"s\": \"\\n if (a < b && \\\"c\\\") {\\n</parameter >\\n\"}", ""}}));
}

TEST(QwenCalls, StringsStream) {
  const auto parser = make_response_parser(format_of(F::qwen3_coder), {test_tools(), true, false});
  parser->push("<tool_call>\n<function=f>\n<parameter=s>\nab");
  const auto events = parser->push("cd\n");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text, "cd");  // the newline may belong to the tag
  EXPECT_EQ(parser->push("e")[0].text, "\\ne");
}

TEST(QwenCalls, ValuesThatDoNotFitTheirTypeAreStrings) {
  EXPECT_EQ(
      parse_with_tools(F::qwen3_coder,
                       "<tool_call><function=f><parameter=n>many</parameter><parameter=list>[1</parameter>"
                       "<parameter=b>1</parameter></function></tool_call>")
          .calls,
      (Calls{{"f", "{\"n\": \"many\", \"list\": \"[1\", \"b\": \"1\"}", ""}}));
}

TEST(QwenCalls, TheOuterTagMayBeMissingForKnownTools) {
  EXPECT_EQ(parse_with_tools(F::qwen3_coder, "<function=g>\n</function>\n</tool_call>"),
            (ParsedResponse{"", "", {{"g", "{}", ""}}}));
  EXPECT_EQ(parse_with_tools(F::qwen3_coder, "<function=h>\n</function>"),
            (ParsedResponse{"", "<function=h>\n</function>", {}}));
}

TEST(QwenCalls, CallsAreParallel) {
  EXPECT_EQ(
      parse_with_tools(
          F::qwen3_coder,
          "<tool_call>\n<function=g>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</function>\n"
          "</tool_call>"),
      (ParsedResponse{"", "", {{"g", "{}", ""}, {"g", "{}", ""}}}));
}

TEST(QwenCalls, TruncationKeepsABeginning) {
  const std::string text =
      "<tool_call>\n<function=f>\n<parameter=s>\nab\n</parameter>\n<parameter=n>\n12\n</parameter>\n";
  const std::pair<size_t, const char*> cuts[] = {
      {text.find(">\nab") + 4, "{\"s\": \"ab"},      {text.find("ter=n"), "{\"s\": \"ab\""},
      {text.find("=n>") + 2, "{\"s\": \"ab\", \"n"}, {text.find("2\n</"), "{\"s\": \"ab\", \"n\": 1"},
      {text.size(), "{\"s\": \"ab\", \"n\": 12"},
  };
  for (const auto& [size, arguments] : cuts) {
    EXPECT_EQ(parse_with_tools(F::qwen3_coder, text.substr(0, size)),
              (ParsedResponse{"", "", {{"f", arguments, ""}}}));
  }
}

TEST(GlmCalls, BothLayoutsAreRead) {
  const Calls calls = {{"f", "{\"s\": \" 12 \", \"n\": 3}", ""}, {"g", "{}", ""}};
  EXPECT_EQ(parse_with_tools(
                F::glm45,
                "\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value> 12 </arg_value>\n<arg_key>n</arg_key>\n"
                "<arg_value>3</arg_value>\n</tool_call>\n<tool_call>g\n</tool_call>")
                .calls,
            calls);
  EXPECT_EQ(parse_with_tools(F::glm45,
                             "<tool_call>f<arg_key>s</arg_key><arg_value> 12 </arg_value><arg_key>n</arg_key>"
                             "<arg_value>3</arg_value></tool_call><tool_call>g</tool_call>")
                .calls,
            calls);
}

TEST(GlmCalls, WhatIsNoCallIsContent) {
  for (const char* text : {"<tool_call>f is a tag", "<tool_call></tool_call>", "<tool_call>f",
                           "<tool_call>f\n", "<tool_call>{\"name\": \"f\"}</tool_call>"}) {
    EXPECT_EQ(parse_with_tools(F::glm45, text), (ParsedResponse{"", text, {}}));
  }
}

TEST(DsmlCalls, AttributesSayWhatIsAString) {
  for (const std::string section : {"function_calls", "tool_calls"}) {
    EXPECT_EQ(
        parse_with_tools(F::deepseek_v32,
                         "Ok.\n\n<｜DSML｜" + section +
                             ">\n<｜DSML｜invoke name=\"f\">\n"
                             "<｜DSML｜parameter name=\"n\" string=\"true\">5</｜DSML｜parameter>\n"
                             "<｜DSML｜parameter name=\"x\" string=\"false\">{\"a\": 5}</｜DSML｜parameter>\n"
                             "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n</｜DSML｜invoke>\n</｜DSML｜" +
                             section + ">"),
        (ParsedResponse{"", "Ok.", {{"f", "{\"n\": \"5\", \"x\": {\"a\": 5}}", ""}, {"g", "{}", ""}}}));
  }
}

TEST(DeepSeekCalls, TheNameMayStandBehindTheSeparator) {
  EXPECT_EQ(parse_with_tools(F::deepseek_v3,
                             "Hm.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```"
                             "json\n{\"a\": \"```\"}\n```"
                             "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n```json\n{}"
                             "\n```<｜tool▁call▁end｜>"
                             "<｜tool▁calls▁end｜>"),
            (ParsedResponse{"", "Hm.", {{"f", "{\"a\": \"```\"}", ""}, {"g", "{}", ""}}}));
}

TEST(DeepSeekCalls, TheNameMayStandBeforeTheSeparator) {
  EXPECT_EQ(parse_with_tools(
                F::deepseek_v31,
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"
                "<｜tool▁call▁begin｜>g<｜tool▁sep｜><｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
            (ParsedResponse{"", "", {{"f", "{\"a\": 1}", ""}, {"g", "{}", ""}}}));
}

TEST(DeepSeekCalls, WhatIsNoCallIsContent) {
  for (const char* text :
       {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁begin｜>x", "<｜tool▁call▁begin｜>f",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>g\n```json\n[1]\n```"}) {
    EXPECT_EQ(parse_with_tools(F::deepseek_v31, text), (ParsedResponse{"", text, {}}));
  }
}

TEST(KimiCalls, TheModelsOwnIdsAreKept) {
  EXPECT_EQ(parse_with_tools(
                F::kimi_k2,
                "Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:3<|tool_call_argument_begin|>"
                "{\"a\": 1}<|tool_call_end|><|tool_call_begin|>g:4<|tool_call_argument_begin|>{}"
                "<|tool_call_end|><|tool_calls_section_end|>"),
            (ParsedResponse{"", "Hm.", {{"f", "{\"a\": 1}", "functions.f:3"}, {"g", "{}", "g:4"}}}));
}

TEST(LlamaCalls, AnObjectWithNameAndParametersIsACall) {
  EXPECT_EQ(parse_with_tools(F::llama3_json, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}").calls,
            (Calls{{"f", "{\"a\": 1}", ""}}));
  EXPECT_EQ(parse_with_tools(F::llama3_json,
                             "<|python_tag|>{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}}; "
                             "{\"name\": \"g\", \"parameters\": {}}")
                .calls,
            (Calls{{"f", "{}", ""}, {"g", "{}", ""}}));
}

TEST(LlamaCalls, OtherObjectsAreContent) {
  for (const char* text :
       {"{\"answer\": 42}", "{}", "{\"name\": \"Bob\", \"age\": 3", "x {\"name\": \"f\", \"parameters\": {}}",
        "<|python_tag|>g.call(x=\"1\")", " {", "{\"name\": \"f\", \"parameters\": [1]}"}) {
    EXPECT_EQ(parse_with_tools(F::llama3_json, text), (ParsedResponse{"", text, {}}));
  }
}

TEST(MistralCalls, AListOfObjects) {
  EXPECT_EQ(
      parse_with_tools(F::mistral,
                       "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"abcdefghi\"}, "
                       "{\"name\": \"g\", \"arguments\": {}}]"),
      (ParsedResponse{"", "", {{"f", "{\"a\": 1}", ""}, {"g", "{}", ""}}}));
  EXPECT_EQ(
      parse_with_tools(F::mistral, "[TOOL_CALLS] {\"id\": \"abcdefghi\", \"name\": \"f\", \"arguments\": {}}")
          .calls,
      (Calls{{"f", "{}", "abcdefghi"}}));
}

TEST(MistralCalls, NamesBeforeTheirArguments) {
  EXPECT_EQ(parse_with_tools(F::mistral_args,
                             "Hm.[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]123456789[ARGS]{}"),
            (ParsedResponse{"", "Hm.", {{"f", "{\"a\": 1}", ""}, {"g", "{}", "123456789"}}}));
}

TEST(MistralCalls, WhatIsNoCallIsContent) {
  for (const char* text :
       {"[TOOL_CALLS]", "[TOOL_CALLS]f", "[TOOL_CALLS]some words {", "[TOOL_CALLS][", "[TOOL_CALLS][1]"}) {
    EXPECT_EQ(parse_with_tools(F::mistral_args, text), (ParsedResponse{"", text, {}}));
  }
}

}  // namespace
}  // namespace atom::text
