// Claims about gpt-oss's channels.
#include "text/harmony_parser.h"

#include <gtest/gtest.h>

#include <random>

#include "text/response_test_util.h"

namespace atom::text {
namespace {

ParsedResponse parse(std::string_view text, bool starts_in_reasoning = false) {
  return parse_with_tools(ResponseFormat::harmony, text, ReasoningFormat::harmony, starts_in_reasoning);
}

TEST(HarmonyParser, ChannelsSayWhatIsReasoning) {
  EXPECT_EQ(
      parse("<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>final<|message|>B<|return|>"),
      (ParsedResponse{"A", "B", {}}));
  EXPECT_EQ(parse("A<|end|><|start|>assistant<|channel|>final<|message|>B", true),
            (ParsedResponse{"A", "B", {}}));
}

TEST(HarmonyParser, MessagesToFunctionsAreCalls) {
  const ParsedResponse call = {"", "", {{"f", "{\"a\":1}", ""}}};
  EXPECT_EQ(parse("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\":1}<|call|>"),
            call);
  EXPECT_EQ(parse(" to=functions.f<|channel|>commentary json<|message|>{\"a\":1}<|call|>"), call);
  EXPECT_EQ(parse("<|channel|>commentary to=functions.f<|constrain|>json<|message|>{\"a\":1}"), call);
  EXPECT_EQ(parse("<|channel|>analysis to=functions.f code<|message|>{\"a\":1}<|call|>"), call);
  EXPECT_EQ(parse("<|channel|>commentary to=functions.g<|message|><|call|>"),
            (ParsedResponse{"", "", {{"g", "{}", ""}}}));
}

TEST(HarmonyParser, ReasoningPreambleAndCallsFollowEachOther) {
  EXPECT_EQ(
      parse("<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>commentary<|message|>Wait<|"
            "end|>"
            "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
            "<|start|>assistant<|channel|>commentary to=functions.g<|message|>{}<|call|>"),
      (ParsedResponse{"A", "Wait", {{"f", "{}", ""}, {"g", "{}", ""}}}));
}

TEST(HarmonyParser, MessagesOfOneKindAreSeparated) {
  EXPECT_EQ(
      parse("<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>analysis<|message|>B<|end|>"
            "<|start|>assistant<|channel|>final<|message|>C"),
      (ParsedResponse{"A\nB", "C", {}}));
}

TEST(HarmonyParser, TruncationKeepsWhatIsThere) {
  EXPECT_EQ(parse("<|channel|>analysis<|message|>A"), (ParsedResponse{"A", "", {}}));
  EXPECT_EQ(parse("<|channel|>commentary to=functions.f<|message|>{\"a\": \"x"),
            (ParsedResponse{"", "", {{"f", "{\"a\": \"x", ""}}}));
  EXPECT_EQ(parse("<|channel|>final<|mess"), (ParsedResponse{"", "<|channel|>final<|mess", {}}));
}

TEST(HarmonyParser, BrokenHeadersAreContent) {
  EXPECT_EQ(parse("<|message|>B"), (ParsedResponse{"", "B", {}}));                          // no channel
  EXPECT_EQ(parse("<|channel|>secret<|message|>B<|end|>"), (ParsedResponse{"", "B", {}}));  // unknown channel
  EXPECT_EQ(parse("<|start|><|start|>assistant<|channel|>final<|message|>B"), (ParsedResponse{"", "B", {}}));
  EXPECT_EQ(parse("assistant<|channel|>final<|message|>B"), (ParsedResponse{"", "B", {}}));
  EXPECT_EQ(parse("Hello there"), (ParsedResponse{"", "Hello there", {}}));
  EXPECT_EQ(parse("<|channel|>analysis<|message|>A<|channel|>final<|message|>B"),
            (ParsedResponse{"A", "B", {}}));
  EXPECT_EQ(parse("<|channel|>analysis<|message|>A<|end|>B"), (ParsedResponse{"A", "B", {}}));
  EXPECT_EQ(parse("<|channel|>final" + std::string(3000, 'x') + "<|message|>B").calls.size(), 0u);
}

TEST(HarmonyParser, CallsThatAreNoObjectAreContent) {
  const std::string text = "<|channel|>commentary to=python code<|message|>print(1)";
  EXPECT_EQ(parse(text), (ParsedResponse{"", text, {}}));
  EXPECT_EQ(parse("<|channel|>commentary to=functions.f<|message|>{\"a\": oops<|call|>"),
            (ParsedResponse{"", "oops", {{"f", "{\"a\": ", ""}}}));
}

TEST(HarmonyParser, AnySequenceOfMarkersIsParsed) {
  const std::string_view pieces[] = {"<|start|>",
                                     "<|channel|>",
                                     "<|message|>",
                                     "<|constrain|>",
                                     "<|end|>",
                                     "<|return|>",
                                     "<|call|>",
                                     "analysis",
                                     "final",
                                     "commentary",
                                     " to=functions.f",
                                     "{",
                                     "}",
                                     "\"a\":1",
                                     "x",
                                     "assistant",
                                     " "};
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) text += pieces[random() % std::size(pieces)];
    const ParsedResponse whole =
        parse_response(format_of(ResponseFormat::harmony), {test_tools(), true, false}, text);
    std::vector<std::string_view> bytes;
    for (size_t at = 0; at < text.size(); ++at) bytes.push_back(std::string_view(text).substr(at, 1));
    EXPECT_EQ(parse_pieces(format_of(ResponseFormat::harmony), {test_tools(), true, false}, bytes), whole)
        << text;
  }
}

}  // namespace
}  // namespace atom::text
