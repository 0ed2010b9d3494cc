// Every protocol's way to say what an answer must be leads to a grammar, or to an error that names the field.
#include <gtest/gtest.h>

#include "server/chat_api.h"
#include "server/completions_api.h"
#include "server/messages_api.h"
#include "server/responses_api.h"
#include "server/test_model.h"

namespace atom::server {
namespace {

class Constrained : public testing::Test {
 protected:
  Constrained() {
    model_.format = {text::ResponseFormat::hermes, text::ReasoningFormat::think, "by hand"};
    model_.grammars = std::make_shared<text::GrammarCache>(text_->tokenizer(), model_.format);
  }

  static Json with(Json body, const Json& more) {
    body.update(more);
    return body;
  }
  static Json chat(const Json& more) {
    return with({{"model", "m"}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}}, more);
  }
  static Json function(bool strict = false) {
    return {{"name", "f"}, {"parameters", schema()}, {"strict", strict}};
  }
  static Json chat_tools(bool strict = false) {
    return Json::array({{{"type", "function"}, {"function", function(strict)}},
                        {{"type", "function"}, {"function", {{"name", "g"}}}}});
  }
  static Json schema() {
    return Json::parse(
        R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false})");
  }

  bool allows(const GenerationPlan& plan, const std::string& text) const {
    if (plan.requests[0].grammar == nullptr) return true;
    text::GrammarMatcher matcher(plan.requests[0].grammar);
    return matcher.accept(text) && matcher.can_end();
  }
  std::string refused(const Json& body, const std::string& param) const {
    try {
      plan_chat(body, model_);
    } catch (const ApiError& e) {
      EXPECT_EQ(e.status, 400);
      EXPECT_EQ(e.param, param) << e.message;
      return e.message;
    }
    ADD_FAILURE() << "taken: " << body;
    return {};
  }
  void expect_schema(const GenerationPlan& plan) const {
    EXPECT_TRUE(allows(plan, R"({"a": 1})"));
    EXPECT_FALSE(allows(plan, R"({"b": 1})"));
    EXPECT_FALSE(allows(plan, "text"));
  }

  std::unique_ptr<TextModel> text_ = test_text_model();
  ServedModel model_ = test_model(*text_);
  ResponseStore store_;
};

TEST_F(Constrained, ASchemaOfEveryProtocolHoldsTheAnswer) {
  const Json named = {{"name", "n"}, {"schema", schema()}, {"strict", true}};
  const Json flat = with({{"type", "json_schema"}}, named);
  const Json chat_format = {{"type", "json_schema"}, {"json_schema", named}};
  expect_schema(plan_chat(chat({{"response_format", chat_format}}), model_));
  expect_schema(plan_chat(chat({{"structured_outputs", {{"json", schema()}}}}), model_));
  expect_schema(
      plan_completions({{"model", "m"}, {"prompt", "a"}, {"response_format", chat_format}}, model_));
  expect_schema(
      plan_response({{"model", "m"}, {"input", "hi"}, {"text", {{"format", flat}}}}, model_, store_, ""));
  expect_schema(
      plan_messages({{"model", "m"},
                     {"max_tokens", 9},
                     {"messages", {{{"role", "user"}, {"content", "hi"}}}},
                     {"output_config", {{"format", {{"type", "json_schema"}, {"schema", schema()}}}}}},
                    model_));
}

TEST_F(Constrained, ReasoningComesFirstInAChatAndNotInACompletion) {
  const Json format = {{"response_format", {{"type", "json_object"}}}};
  EXPECT_TRUE(allows(plan_chat(chat(format), model_), "<think>well\n</think>\n\n{\"a\": 1}"));
  EXPECT_FALSE(allows(plan_completions(with({{"model", "m"}, {"prompt", "a"}}, format), model_),
                      "<think>well\n</think>\n\n{\"a\": 1}"));
}

TEST_F(Constrained, RegexChoiceAndGrammarAreTaken) {
  const auto plan = [&](const Json& outputs) {
    return plan_completions({{"model", "m"}, {"prompt", "a"}, {"structured_outputs", outputs}}, model_);
  };
  EXPECT_TRUE(allows(plan({{"regex", "a{2}"}}), "aa"));
  EXPECT_FALSE(allows(plan({{"regex", "a{2}"}}), "a"));
  const GenerationPlan choice = plan({{"choice", {"yes", "no (.*)", ""}}});
  for (const char* text : {"yes", "no (.*)", ""}) EXPECT_TRUE(allows(choice, text)) << text;
  for (const char* text : {"ye", "no x", "yesno"}) EXPECT_FALSE(allows(choice, text)) << text;
  EXPECT_TRUE(allows(plan({{"grammar", "root ::= \"x\"+"}}), "xxx"));
  EXPECT_FALSE(allows(plan({{"json_object", true}}), "[]"));
}

TEST_F(Constrained, AForcedCallIsACallOfThatTool) {
  const std::string f = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  const std::string g = "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>";
  const auto expect = [&](const GenerationPlan& plan, bool text, bool call_f, bool call_g) {
    EXPECT_EQ(allows(plan, "text"), text);
    EXPECT_EQ(allows(plan, f), call_f);
    EXPECT_EQ(allows(plan, g), call_g);
  };
  const Json tools = {{"tools", chat_tools()}};
  expect(plan_chat(chat(tools), model_), true, true, true);
  expect(plan_chat(chat(with(tools, {{"tool_choice", "required"}})), model_), false, true, true);
  const Json named = {{"type", "function"}, {"function", {{"name", "f"}}}};
  expect(plan_chat(chat(with(tools, {{"tool_choice", named}})), model_), false, true, false);
  expect(plan_chat(chat(with(tools, {{"response_format", {{"type", "json_object"}}}})), model_), false, true,
         true);
  Json flat = Json::array({with({{"type", "function"}}, function())});
  const Json flat_named = {{"type", "function"}, {"name", "f"}};
  const Json response = {{"model", "m"}, {"input", "hi"}, {"tools", flat}};
  expect(plan_response(with(response, {{"tool_choice", "required"}}), model_, store_, ""), false, true,
         false);
  expect(plan_response(with(response, {{"tool_choice", flat_named}}), model_, store_, ""), false, true,
         false);
  const Json message = {{"model", "m"},
                        {"max_tokens", 9},
                        {"messages", {{{"role", "user"}, {"content", "hi"}}}},
                        {"tools", Json::array({{{"name", "f"}, {"input_schema", schema()}}})}};
  expect(plan_messages(with(message, {{"tool_choice", {{"type", "any"}}}}), model_), false, true, false);
  const Json tool = {{"type", "tool"}, {"name", "f"}};
  expect(plan_messages(with(message, {{"tool_choice", tool}}), model_), false, true, false);
}

TEST_F(Constrained, AStrictToolsCallsConformToItsSchema) {
  const GenerationPlan plan = plan_chat(chat({{"tools", chat_tools(true)}}), model_);
  const std::string open = "Well. <tool_call>\n{\"name\": \"f\", \"arguments\": ";
  EXPECT_TRUE(allows(plan, "Well."));
  EXPECT_TRUE(allows(plan, open + "{\"a\": 1}}\n</tool_call>"));
  EXPECT_FALSE(allows(plan, open + "{\"b\": 1}}\n</tool_call>"));
}

TEST_F(Constrained, WhatCannotBeHeldToIsRefusedByName) {
  const auto schema_format = [](const Json& schema) {
    return Json{
        {"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", schema}}}}}};
  };
  const std::string odd =
      refused(chat(schema_format({{"type", "integer"}, {"multipleOf", 3}})), "response_format");
  EXPECT_NE(odd.find("multipleOf"), std::string::npos) << odd;
  refused(chat({{"response_format", {{"type", "xml"}}}}), "response_format.type");
  refused(chat({{"response_format", {{"type", "json_schema"}}}}), "response_format.json_schema");
  refused(chat({{"response_format", {{"type", "json_object"}, {"more", 1}}}}), "response_format.more");
  EXPECT_NE(refused(chat({{"guided_json", schema()}}), "guided_json").find("structured_outputs"),
            std::string::npos);
  refused(chat({{"structured_outputs", {{"regex", "a"}, {"json_object", true}}}}), "structured_outputs");
  refused(chat({{"structured_outputs", Json::object()}}), "structured_outputs");
  refused(chat({{"structured_outputs", {{"regex", "(?=a)"}}}}), "structured_outputs.regex");
  refused(chat({{"structured_outputs", {{"grammar", "a ::="}}}}), "structured_outputs.grammar");
  refused(chat({{"structured_outputs", {{"regex", "a"}}}, {"response_format", {{"type", "json_object"}}}}),
          "structured_outputs");
  refused(chat({{"tool_choice", "required"}}), "tool_choice");
  refused(
      chat({{"tools", chat_tools()}, {"tool_choice", {{"type", "function"}, {"function", {{"name", "h"}}}}}}),
      "tool_choice");
  const Json strict = {
      {"name", "f"}, {"strict", true}, {"parameters", {{"type", "integer"}, {"multipleOf", 3}}}};
  refused(chat({{"tools", Json::array({{{"type", "function"}, {"function", strict}}})}}), "tools");
  Json begun = chat({{"response_format", {{"type", "json_object"}}}, {"continue_final_message", true}});
  begun["messages"].push_back({{"role", "assistant"}, {"content", "{"}});
  refused(begun, "messages");
}

// Each is refused or compiled within bounds; none hangs, overflows a stack or takes the memory.
TEST_F(Constrained, HostileSchemasAndPatternsCostLittle) {
  Json deep = {{"type", "string"}};
  for (int i = 0; i < 200; ++i) deep = {{"type", "array"}, {"items", deep}};
  Json wide = {{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < 5000; ++i) wide["properties"]["p" + std::to_string(i)] = {{"type", "string"}};
  Json loop = Json::parse(
      R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}})");
  Json blow = {{"type", "string"}};
  for (int i = 0; i < 20; ++i) blow = {{"anyOf", {blow, blow}}};
  for (const Json& schema :
       {deep, wide, loop, blow, Json{{"type", "string"}, {"maxLength", INT64_MAX}},
        Json{{"type", "array"}, {"minItems", 1'000'000'000}, {"items", {{"type", "string"}}}}}) {
    try {
      plan_chat(chat({{"structured_outputs", {{"json", schema}}}}), model_);
    } catch (const ApiError& e) {
      EXPECT_EQ(e.status, 400);
    }
  }
  const std::string many(20000, '(');
  for (const std::string& pattern : {std::string("(a{1000}){1000}{1000}"), std::string("(a*)*b"), many,
                                     std::string("(((a|b)*c){100}d){100}"), std::string("[\\s\\S]{99999}")}) {
    try {
      plan_chat(chat({{"structured_outputs", {{"regex", pattern}}}}), model_);
    } catch (const ApiError& e) {
      EXPECT_EQ(e.status, 400);
    }
  }
}

TEST_F(Constrained, TheSameFormIsCompiledOnce) {
  const Json format = {{"response_format", {{"type", "json_object"}}}};
  EXPECT_EQ(plan_chat(chat(format), model_).requests[0].grammar,
            plan_chat(chat(format), model_).requests[0].grammar);
  const Json other = {{"structured_outputs", {{"regex", "a"}}}};
  EXPECT_NE(plan_chat(chat(format), model_).requests[0].grammar,
            plan_chat(chat(other), model_).requests[0].grammar);
}

}  // namespace
}  // namespace atom::server
