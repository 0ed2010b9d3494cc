// Claims about calls in grammars: whatever they allow, the response parser reads as the call.
#include "text/tool_grammar.h"

#include <gtest/gtest.h>

#include "text/grammar_test_util.h"
#include "text/response_test_util.h"

namespace atom::text {
namespace {

using F = ResponseFormat;

constexpr F kFormats[] = {F::hermes,       F::qwen3_coder,  F::deepseek_v3, F::deepseek_v31,
                          F::deepseek_v32, F::glm45,        F::harmony,     F::llama3_json,
                          F::mistral,      F::mistral_args, F::kimi_k2};

std::vector<ToolSchema> tools() {
  return {
      {"set",
       Json::parse(
           R"({"type": "object", "properties": {"n": {"type": "integer", "minimum": -99, "maximum": 99}, "unit": {"enum": ["c", "f"]},
            "s": {"type": "string"}}, "required": ["n", "unit"]})"),
       true},
      {"ping", Json::object()}};
}

Result<GrammarPtr> call_grammar(F format, const std::vector<ToolSchema>& with) {
  GrammarBuilder builder;
  const Result<GrammarBuilder::Expr> call = call_expr(builder, format_of(format), with, {});
  if (!call.ok()) return call.error();
  return builder.compile(builder.rule("root", call.value()));
}

TEST(ToolGrammar, WhatItAllowsIsReadAsTheCall) {
  for (const F format : kFormats) {
    for (const bool both : {false, true}) {
      const auto with = both ? tools() : std::vector{tools()[0]};
      const GrammarPtr grammar = call_grammar(format, with).take();
      int texts = 0;
      for (uint32_t seed = 0; seed < 60; ++seed) {
        const std::string text = random_text(grammar, seed, 2000, false);
        if (text.empty()) continue;
        ++texts;
        const ParsedResponse got = parse_response(format_of(format), {with, true, false}, text);
        ASSERT_EQ(got.calls.size(), 1u) << to_string(format) << "\n" << text;
        EXPECT_EQ(got.content + got.reasoning, "") << to_string(format) << "\n" << text;
        const Json arguments = Json::parse(got.calls[0].arguments, nullptr, false);
        ASSERT_TRUE(arguments.is_object()) << to_string(format) << "\n"
                                           << text << "\n"
                                           << got.calls[0].arguments;
        if (got.calls[0].name == "set") {
          EXPECT_TRUE(arguments["n"].is_number_integer() && arguments["n"] <= 99) << text;
          EXPECT_TRUE(arguments["unit"] == "c" || arguments["unit"] == "f") << text;
        } else {
          EXPECT_EQ(got.calls[0].name, "ping");
          EXPECT_TRUE(both);
        }
      }
      EXPECT_GT(texts, 3) << to_string(format);
    }
  }
}

TEST(ToolGrammar, MasksAreExact) {
  const GrammarPtr grammar = call_grammar(F::qwen3_coder, tools()).take();
  for (uint32_t seed = 0; seed < 4; ++seed) random_text(grammar, seed, 60, true);
}

TEST(ToolGrammar, RefusesByName) {
  const auto message = [](F format, const std::vector<ToolSchema>& with) {
    const auto grammar = call_grammar(format, with);
    return grammar.ok() ? std::string() : grammar.error().message();
  };
  EXPECT_NE(message(F::hermes, {}).find("no tools"), std::string::npos);
  EXPECT_NE(message(F::plain, tools()).find("no tool calls"), std::string::npos);
  const Json odd =
      Json::parse(R"({"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 2}}})");
  EXPECT_NE(message(F::hermes, {{"t", odd, true}}).find("tool \"t\": schema: #/properties/a"),
            std::string::npos);
  EXPECT_NE(message(F::glm45, {{"t", odd, true}}).find("multipleOf"), std::string::npos);
  EXPECT_EQ(message(F::hermes, {{"t", odd, false}}), "");
}

// Arguments that are text have no quotes there, so most of what a schema says of strings cannot be kept to.
TEST(ToolGrammar, StrictArgumentsThatAreTextAreKeptToOrRefusedByName) {
  const auto message = [](F format, const Json& property, const Json& more = Json::object(),
                          bool strict = true) {
    Json parameters = {{"type", "object"}, {"properties", {{"s", property}}}, {"required", {"s"}}};
    parameters.update(more);
    const auto grammar = call_grammar(format, {{"t", parameters, strict}});
    return grammar.ok() ? std::string() : grammar.error().message();
  };
  for (const F format : {F::qwen3_coder, F::glm45, F::deepseek_v32}) {
    for (const char* kept :
         {R"({"type": "string", "description": "d"})", R"({"enum": ["a", "b"], "type": "string"})",
          R"({"const": "a"})", R"({"anyOf": [{"type": "string"}, {"type": "null"}]})",
          R"({"type": "integer", "minimum": 3})", "{}", "true"}) {
      EXPECT_EQ(message(format, Json::parse(kept)), "") << kept;
    }
    for (const auto& [refused, keyword] : std::vector<std::pair<const char*, const char*>>{
             {R"({"type": "string", "maxLength": 3})", "maxLength"},
             {R"({"type": "string", "pattern": "a"})", "pattern"},
             {R"({"enum": ["a", 1]})", "enum"},
             {R"({"enum": ["a"], "format": "date"})", "format"},
             {R"({"type": ["string", "integer"]})", "type"},
             {R"({"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}]})", "anyOf"}}) {
      const std::string place = std::string("tool \"t\": schema: #/properties/s: \"") + keyword + '"';
      EXPECT_NE(message(format, Json::parse(refused)).find(place), std::string::npos) << refused;
      EXPECT_EQ(message(format, Json::parse(refused), Json::object(), false), "") << refused;
    }
    const Json string = {{"type", "string"}};
    EXPECT_NE(message(format, string, {{"required", {"s", "t"}}}).find("#: \"required\""), std::string::npos);
    EXPECT_NE(message(format, string, {{"anyOf", Json::array()}}).find("#: \"anyOf\""), std::string::npos);
    EXPECT_EQ(message(format, string, {{"additionalProperties", false}}), "");
  }
  // References lead to where they do in the whole schema.
  const Json tree =
      Json::parse(R"({"properties": {"t": {"type": "array", "items": {"$ref": "#/properties/n"}},
    "n": {"type": "integer", "minimum": 7, "maximum": 7}}, "required": ["t", "n"]})");
  const std::string call = random_text(call_grammar(F::glm45, {{"t", tree, true}}).take(), 3, 400, false);
  EXPECT_NE(call.find("<arg_value>7</arg_value>"), std::string::npos) << call;
  const GrammarPtr constant =
      call_grammar(F::glm45,
                   {{"t", Json::parse(R"({"properties": {"s": {"const": "a"}}, "required": ["s"]})"), true}})
          .take();
  EXPECT_NE(random_text(constant, 1, 200, false).find("<arg_value>a</arg_value>"), std::string::npos);
}

}  // namespace
}  // namespace atom::text
