// Claims about grammars of whole answers: what they allow is what the parser makes of it.
#include "text/answer_grammar.h"

#include <gtest/gtest.h>

#include "text/grammar_test_util.h"
#include "text/marked_text.h"
#include "text/response_test_util.h"
#include "text/tool_choice.h"

namespace atom::text {
namespace {

using F = ResponseFormat;
using R = ReasoningFormat;

const Json& schema() {
  static const Json schema = Json::parse(
      R"({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]})");
  return schema;
}

AnswerForm json_form() {
  AnswerForm form;
  form.content = {ContentForm::Kind::json_schema, schema(), ""};
  return form;
}

GrammarPtr grammar_of(const FormatChoice& format, const AnswerForm& form,
                      const std::vector<std::string>& specials = {}) {
  return answer_grammar(format, form, specials).take();
}

TEST(MarkedText, RunsUpToTheMarkAndHoldsNoneOfTheOthers) {
  GrammarBuilder b;
  const std::string without[] = {"<tool>", "aab"};
  const GrammarPtr grammar = b.compile(b.rule("root", text_through(b, "</think>", without))).take();
  for (const char* text :
       {"</think>", "x</think>", "<</think>", "</thin</think>", "<tool</think>", "aa<tool</tool></think>"}) {
    EXPECT_TRUE(matches(grammar, text)) << text;
  }
  for (const char* text :
       {"", "</think", "</think>x", "a</think></think>", "<tool></think>", "aaaab</think>", "\xFF</think>"}) {
    EXPECT_FALSE(matches(grammar, text)) << text;
  }
}

TEST(MarkedText, WithoutAMarkToStopAtEndsAnywhere) {
  GrammarBuilder b;
  const std::string without[] = {"<call>"};
  const GrammarPtr grammar = b.compile(b.rule("root", text_through(b, "", without))).take();
  for (const char* text : {"", "a", "<call", "<<call", "\xE4\xB8\xAD"})
    EXPECT_TRUE(matches(grammar, text)) << text;
  for (const char* text : {"<call>", "a<call>b", "\xE4"}) EXPECT_FALSE(matches(grammar, text)) << text;
}

TEST(AnswerGrammar, ContentComesBehindReasoning) {
  const FormatChoice format = format_of(F::hermes, R::think);
  const GrammarPtr grammar = grammar_of(format, json_form());
  for (const char* text : {R"({"n": 3})", "<think>\nso {\"n\": 77}\n</think>\n\n{\"n\":3}"}) {
    EXPECT_TRUE(matches(grammar, text)) << text;
    EXPECT_EQ(Json::parse(parse_response(format, {}, text).content)["n"], 3);
  }
  for (const char* text : {"<think>x</think>", R"({"n": 33})", "x</think>{\"n\":3}"})
    EXPECT_FALSE(matches(grammar, text)) << text;

  AnswerForm form = json_form();
  form.in_reasoning = true;
  EXPECT_TRUE(matches(grammar_of(format, form), "hm\n</think>\n{\"n\":3}"));
  EXPECT_FALSE(matches(grammar_of(format, form), R"({"n": 3})"));
  form.in_reasoning = false;
  form.reasoned = true;
  EXPECT_FALSE(matches(grammar_of(format, form), "<think>x</think>{\"n\":3}"));
  EXPECT_TRUE(matches(grammar_of(format, form), R"({"n": 3})"));
}

TEST(AnswerGrammar, SpecialTokensStandOnlyWhereTheFormatHasThem) {
  const std::vector<std::string> specials = {"<think>", "</think>"};
  const FormatChoice format = format_of(F::plain, R::think);
  AnswerForm form;
  form.content = {ContentForm::Kind::json_schema, Json{{"type", "string"}}, ""};
  const GrammarPtr grammar = grammar_of(format, form, specials);
  EXPECT_TRUE(matches(grammar, "\xFF<think>a</think>b\xFF</think>\"</think>\""));
  EXPECT_FALSE(matches(grammar, "\xFF<think>a\xFF</think>\"\xFF</think>\""));
  EXPECT_FALSE(matches(grammar, "<think>a\xFF</think>\"b\""));
}

TEST(AnswerGrammar, HarmonysMessagesFrameReasoningAndContent) {
  const FormatChoice format = format_of(F::harmony, R::harmony);
  const GrammarPtr grammar = grammar_of(format, json_form());
  const std::string final = "<|channel|>final<|message|>{\"n\":3}";
  const std::string thought = "<|channel|>analysis<|message|>so<|end|><|start|>assistant";
  for (const std::string& text : {final, thought + final, thought + thought + final}) {
    EXPECT_TRUE(matches(grammar, text)) << text;
    EXPECT_EQ(parse_response(format, {}, text).content, "{\"n\":3}");
  }
  EXPECT_FALSE(matches(grammar, "{\"n\":3}"));
  EXPECT_FALSE(matches(grammar, thought));
}

TEST(AnswerGrammar, ARequiredCallOrConstrainedContentOrACall) {
  const std::vector<ToolSchema> tools = {{"f", schema(), false}};
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1}}\n</tool_call>";
  AnswerForm form;
  form.tools = tools;
  form.must_call = true;
  const FormatChoice format = format_of(F::hermes, R::think);
  EXPECT_TRUE(matches(grammar_of(format, form), call));
  EXPECT_TRUE(matches(grammar_of(format, form), "<think>a</think>\n\n" + call));
  EXPECT_FALSE(matches(grammar_of(format, form), R"({"n":3})"));
  form.must_call = false;
  form.content = json_form().content;
  EXPECT_TRUE(matches(grammar_of(format, form), call));
  EXPECT_TRUE(matches(grammar_of(format, form), R"({"n":3})"));
  EXPECT_FALSE(matches(grammar_of(format, form), "text"));
}

TEST(AnswerGrammar, FreeTextMayGoOverIntoOneConformingCall) {
  AnswerForm form;
  form.tools = {{"f", schema(), true}};
  for (const F f : {F::hermes, F::qwen3_coder, F::deepseek_v3, F::deepseek_v31, F::deepseek_v32, F::glm45,
                    F::mistral, F::mistral_args, F::kimi_k2}) {
    const FormatChoice format = format_of(f);
    const GrammarPtr grammar = grammar_of(format, form);
    EXPECT_TRUE(matches(grammar, "just text")) << to_string(f);
    EXPECT_FALSE(matches(grammar, "text " + call_marks(f)[0])) << to_string(f);
    int calls = 0;
    for (uint32_t seed = 0; seed < 20; ++seed) {
      const std::string text = random_text(grammar, seed, 300, false);
      const ParsedResponse got = parse_response(format, {form.tools, true, false}, text);
      calls += !got.calls.empty();
      for (const ParsedCall& call : got.calls) {
        const Json arguments = Json::parse(call.arguments, nullptr, false);
        EXPECT_TRUE(arguments.is_object() && arguments["n"].is_number_integer()) << text;
      }
    }
    EXPECT_LE(calls, 20);
    const std::string prefix = "Let me see. " + call_prefix(format, "f").value();
    GrammarMatcher matcher = matcher_of(grammar);
    EXPECT_TRUE(matcher.accept(prefix)) << to_string(f);
    EXPECT_FALSE(matcher.can_end()) << to_string(f);
  }
  const Result<GrammarPtr> refused = answer_grammar(format_of(F::llama3_json), form, {});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message().find("tool_choice"), std::string::npos);
}

TEST(AnswerGrammar, EveryKindOfContentIsCompiledOrRefused) {
  using Kind = ContentForm::Kind;
  EXPECT_TRUE(matches(content_grammar({Kind::json_object, {}, ""}).take(), R"({"a": [1]})"));
  EXPECT_TRUE(matches(content_grammar({Kind::regex, {}, "a+b"}).take(), "aab"));
  EXPECT_TRUE(matches(content_grammar({Kind::ebnf, {}, "root ::= \"x\" root | \"y\""}).take(), "xxy"));
  EXPECT_FALSE(content_grammar({Kind::regex, {}, "("}).ok());
  EXPECT_FALSE(content_grammar({Kind::ebnf, {}, "a ::= \"x\""}).ok());
  EXPECT_FALSE(content_grammar({Kind::json_schema, Json{{"not", {}}}, ""}).ok());
}

}  // namespace
}  // namespace atom::text
