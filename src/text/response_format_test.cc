// Claims about choosing a format from the checkpoint, about forced calls, and about real templates and
// vocabularies.
#include "text/response_format.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "base/file.h"
#include "text/argument_types.h"
#include "text/chat_messages.h"
#include "text/chat_template.h"
#include "text/response_test_util.h"
#include "text/tool_choice.h"

namespace atom::text {
namespace {

using F = ResponseFormat;
using R = ReasoningFormat;

FormatChoice detect(std::string_view chat_template, std::vector<std::string_view> tokens = {},
                    std::string_view architecture = "") {
  return detect_response_format(
      chat_template,
      [&](std::string_view token) { return std::find(tokens.begin(), tokens.end(), token) != tokens.end(); },
      architecture);
}

TEST(ResponseFormat, TheTemplateDecides) {
  EXPECT_EQ(detect("x <tool_call>\\n{\"name\" y").tools, F::hermes);
  EXPECT_EQ(detect("<tool_call>\\n<function=f>\\n<parameter=p></think>").tools, F::qwen3_coder);
  EXPECT_EQ(detect("<tool_call>\\n<function=f>\\n<parameter=p></think>").reasoning, R::think);
  EXPECT_EQ(detect("<tool_call>{name}<arg_key>").tools, F::glm45);
  EXPECT_EQ(detect("[TOOL_CALLS]' + name + '[ARGS]").tools, F::mistral_args);
  EXPECT_EQ(detect("[TOOL_CALLS] [THINK]").reasoning, R::mistral_think);
  EXPECT_EQ(detect("'<｜DSML｜invoke name'").tools, F::deepseek_v32);
  const FormatChoice plain = detect("{{ messages }}", {"<tool_call>", "<think>"});
  EXPECT_EQ(plain.tools, F::plain);
  EXPECT_EQ(plain.reasoning, R::none);
  EXPECT_NE(plain.reason.find("no tool-call syntax"), std::string::npos);
}

TEST(ResponseFormat, WithoutATemplateTheVocabularyDecides) {
  EXPECT_EQ(detect("", {"<|channel|>", "<|message|>"}).tools, F::harmony);
  EXPECT_EQ(detect("", {"<tool_call>", "</think>"}).tools, F::hermes);
  EXPECT_EQ(detect("", {"<tool_call>", "</think>"}).reasoning, R::think);
  EXPECT_EQ(detect("", {"</think>"}, "DeepseekV32ForCausalLM").tools, F::deepseek_v32);
  EXPECT_EQ(detect("", {"<｜tool▁calls▁begin｜>"}).tools, F::deepseek_v3);
  EXPECT_EQ(detect("").tools, F::plain);
}

TEST(ResponseFormat, PromptsThatOpenReasoningAreKnown) {
  const FormatChoice think = format_of(F::hermes, R::think), harmony = format_of(F::harmony, R::harmony);
  EXPECT_TRUE(prompt_opens_reasoning(think, "<|im_start|>assistant\n<think>\n"));
  EXPECT_FALSE(prompt_opens_reasoning(think, "<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(prompt_opens_reasoning(think, "<|im_start|>assistant\n"));
  EXPECT_FALSE(prompt_opens_reasoning(format_of(F::hermes), "<think>"));
  EXPECT_TRUE(prompt_opens_reasoning(harmony, "<|start|>assistant<|channel|>analysis<|message|>"));
  EXPECT_FALSE(prompt_opens_reasoning(harmony, "<|start|>assistant"));
}

TEST(ToolChoice, AForcedCallIsParsedLikeOneThatTheModelBegan) {
  for (const F format : {F::hermes, F::deepseek_v3, F::deepseek_v31, F::harmony, F::llama3_json, F::mistral,
                         F::mistral_args, F::kimi_k2}) {
    const FormatChoice choice = format_of(format);
    const std::string prefix = call_prefix(choice, "f").value();
    const ParsedResponse got = parse_every_way(choice, {test_tools(), true, false}, prefix + " {\"a\": 1}");
    ASSERT_EQ(got.calls.size(), 1u) << to_string(format);
    EXPECT_EQ(got.calls[0].name, "f");
    EXPECT_EQ(got.calls[0].arguments, "{\"a\": 1}");
    EXPECT_EQ(got.content + got.reasoning, "");
    EXPECT_EQ(prefix.find(call_prefix(choice, "").value() + "f"), 0u);
  }
  EXPECT_EQ(parse_with_tools(F::qwen3_coder, call_prefix(format_of(F::qwen3_coder), "f").value() +
                                                 "<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>")
                .calls,
            (std::vector<ParsedCall>{{"f", "{\"n\": 1}", ""}}));
  EXPECT_EQ(parse_with_tools(F::glm45, call_prefix(format_of(F::glm45), "g").value() + "</tool_call>").calls,
            (std::vector<ParsedCall>{{"g", "{}", ""}}));
  EXPECT_EQ(parse_with_tools(F::deepseek_v32,
                             call_prefix(format_of(F::deepseek_v32), "g").value() + "</｜DSML｜invoke>")
                .calls,
            (std::vector<ParsedCall>{{"g", "{}", ""}}));
}

TEST(ToolChoice, FormatsWithoutCallsSaySo) { EXPECT_FALSE(call_prefix(format_of(F::plain), "g").ok()); }

TEST(ToolChoice, CallsBeginWithTheirMark) {
  for (const F format : {F::hermes, F::qwen3_coder, F::deepseek_v3, F::deepseek_v31, F::deepseek_v32,
                         F::glm45, F::mistral, F::mistral_args, F::kimi_k2}) {
    const std::vector<std::string> marks = call_marks(format);
    ASSERT_FALSE(marks.empty()) << to_string(format);
    EXPECT_TRUE(call_prefix(format_of(format), "").value().starts_with(marks[0])) << to_string(format);
  }
}

TEST(ToolChoice, IdsHaveTheShapeThatTemplatesWant) {
  EXPECT_EQ(tool_call_id(format_of(F::kimi_k2), 2, "f", 1), "functions.f:2");
  EXPECT_EQ(tool_call_id(format_of(F::mistral), 0, "f", 1).size(), 9u);
  const std::string id = tool_call_id(format_of(F::hermes), 0, "f", 1);
  EXPECT_EQ(id.find("call_"), 0u);
  EXPECT_NE(id, tool_call_id(format_of(F::hermes), 0, "f", 2));
}

TEST(ArgumentTypes, FollowTheSchema) {
  const ArgumentTypes types(Json::parse(R"({"properties": {
    "a": {"type": ["integer", "null"]}, "b": {"enum": ["x", 1]}, "c": {"anyOf": [{"type": "string"}, {"const": true}]},
    "d": {"$ref": "#/$defs/d"}, "e": {"allOf": [{"type": ["string", "number"]}, {"type": "number"}]},
    "f": {"$ref": "#/$defs/loop"}, "g": {"type": "odd"}, "h": true, "i": {"type": "string", "nullable": true}},
    "$defs": {"d": {"type": "array"}, "loop": {"$ref": "#/$defs/loop"}}})"));
  EXPECT_EQ(types.of("a"), kNumberType | kNullType);
  EXPECT_EQ(types.of("b"), kStringType | kNumberType);
  EXPECT_EQ(types.of("c"), kStringType | kBooleanType);
  EXPECT_EQ(types.of("d"), kArrayType);
  EXPECT_EQ(types.of("e"), kNumberType);
  EXPECT_EQ(types.of("f"), kAnyType);
  EXPECT_EQ(types.of("g"), kAnyType);
  EXPECT_EQ(types.of("h"), kAnyType);
  EXPECT_EQ(types.of("i"), kStringType | kNullType);
  EXPECT_EQ(types.of("unknown"), kAnyType);
  EXPECT_EQ(ArgumentTypes(Json("no schema")).of("a"), kAnyType);
}

TEST(ArgumentTypes, FanningReferencesAreBounded) {
  Json schema = Json::object();
  for (int i = 0; i < 14; ++i) {
    const Json next = {{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
    schema["$defs"]["d" + std::to_string(i)] = {{"anyOf", Json::array({next, next, next, next})}};
  }
  schema["properties"]["a"] = {{"$ref", "#/$defs/d0"}};
  EXPECT_EQ(ArgumentTypes(schema).of("a"), kAnyType);
}

// The golden conversations of real templates: what the template writes for an assistant turn with calls, the
// parser reads back.
TEST(ResponseFormat, CallsThatRealTemplatesRenderAreReadBack) {
  const char* shared = std::getenv("ATOM_SHARED");
  if (shared == nullptr) GTEST_SKIP() << "ATOM_SHARED is not set";
  const std::string folder = std::string(shared) + "/templates/";
  const std::map<std::string, std::pair<F, R>> expected = {
      {"qwen3.jinja", {F::hermes, R::think}},           {"hermes3.jinja", {F::hermes, R::none}},
      {"deepseek_v3.jinja", {F::deepseek_v3, R::none}}, {"deepseek_v3_1.jinja", {F::deepseek_v31, R::think}},
      {"glm_4_6.jinja", {F::glm45, R::think}},          {"gpt_oss.jinja", {F::harmony, R::harmony}},
      {"llama3_3.jinja", {F::llama3_json, R::none}},    {"mistral_nemo.jinja", {F::mistral, R::none}},
      {"kimi_k2.jinja", {F::kimi_k2, R::none}},         {"kimi_k2_thinking.jinja", {F::kimi_k2, R::think}}};
  const std::string_view ends[] = {"<|im_end|>", "<|eot_id|>", "<｜end▁of▁sentence｜>", "</s>"};
  const Json arguments[] = {Json::parse(R"({"city": "Zürich \"<tool>\"\n\\x", "unit": "celsius"})"),
                            Json::object(),
                            Json::parse(R"({"n": 1.50, "b": true, "list": [1, {"a": null}], "s": "}"})")};
  Json tools = Json::array();
  for (const ToolSchema& tool : test_tools()) {
    Json parameters = tool.parameters;
    parameters["type"] = "object";
    if (!parameters.contains("properties")) parameters["properties"] = Json::object();
    tools.push_back({{"type", "function"},
                     {"function", {{"name", tool.name}, {"description", "d"}, {"parameters", parameters}}}});
  }
  for (const auto& [file, format] : expected) {
    const std::string source = read_file(folder + file, 1 << 20);
    const FormatChoice choice = detect(source);
    EXPECT_EQ(choice.tools, format.first) << file << ": " << choice.reason;
    EXPECT_EQ(choice.reasoning, format.second) << file << ": " << choice.reason;
    const ChatTemplate chat_template(source, file);
    ChatTemplateInputs inputs;
    inputs.bos_token = "<s>";
    inputs.eos_token = "</s>";
    const TemplateTraits traits = probe_traits(chat_template, inputs);
    if (file != "hermes3.jinja" && file != "gpt_oss.jinja") inputs.tools = tools;
    if (file == "hermes3.jinja") inputs.tools = Json::array();
    for (size_t first = 0; first < std::size(arguments); ++first) {
      for (const int count : {1, 2}) {
        const bool one_call_only = file == "llama3_3.jinja" || file == "gpt_oss.jinja";
        if (count == 2 && one_call_only) continue;
        std::vector<ParsedCall> calls;
        Json tool_calls = Json::array();
        for (int i = 0; i < count; ++i) {
          const Json& values = arguments[(first + static_cast<size_t>(i)) % std::size(arguments)];
          const std::string name = values.contains("city") ? "get_weather" : values.empty() ? "g" : "f";
          const bool kimi = choice.tools == F::kimi_k2;
          const std::string id =
              kimi ? "functions." + name + ":" + std::to_string(i) : "abcdefgh" + std::to_string(i);
          calls.push_back({name, values.dump(), kimi ? id : ""});
          tool_calls.push_back(
              {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", values}}}});
        }
        inputs.messages = Json::array({{{"role", "user"}, {"content", "hi"}}});
        inputs.add_generation_prompt = true;
        const std::string prompt = render_prompt(chat_template, traits, inputs);
        inputs.messages.push_back({{"role", "assistant"}, {"content", nullptr}, {"tool_calls", tool_calls}});
        inputs.add_generation_prompt = false;
        const std::string full = render_prompt(chat_template, traits, inputs);
        ASSERT_EQ(full.compare(0, prompt.size(), prompt), 0) << file << "\n" << full;
        std::string answer = full.substr(prompt.size());
        for (const std::string_view end : ends) answer = answer.substr(0, answer.rfind(end));
        ParsedResponse got =
            parse_every_way(choice, {test_tools(), true, prompt_opens_reasoning(choice, prompt)}, answer);
        ASSERT_EQ(got.calls.size(), calls.size()) << file << "\n" << answer;
        for (size_t i = 0; i < calls.size(); ++i) {
          EXPECT_EQ(Json::parse(got.calls[i].arguments), Json::parse(calls[i].arguments)) << file << "\n"
                                                                                          << answer;
          EXPECT_EQ(got.calls[i].name, calls[i].name) << file;
          if (choice.tools != F::mistral) {
            EXPECT_EQ(got.calls[i].id, calls[i].id) << file;
          }
        }
        EXPECT_EQ(got.reasoning, "") << file;
        if (file != "glm_4_6.jinja") {  // which writes the null content as None
          EXPECT_EQ(got.content, "") << file << "\n" << answer;
        }
      }
    }
  }
}

}  // namespace
}  // namespace atom::text
