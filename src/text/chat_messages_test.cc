// Shapes of messages that real clients send.
#include "text/chat_messages.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/file.h"

namespace atom::text {
namespace {

// A template that concatenates: it wants strings everywhere and mappings as arguments.
constexpr const char* kStrict =
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}"
    "{% for c in m.tool_calls %}{% for k, v in c.function.arguments.items() %}[{{ k }}={{ v|tojson }}]{% "
    "endfor %}{% endfor %}"
    "{{ '<end>' }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
// Reads parts, and wants arguments as text and none as the content of a calling turn, as DeepSeek's does.
constexpr const char* kParts =
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.role == 'assistant' and m.content is none %}{% for c in m.tool_calls %}{{ '(' + "
    "c.function.arguments + ')' }}{% endfor %}"
    "{% elif m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}{{ p.text }}/{% endfor %}{% endif %}{% endfor %}";

Json message(const std::string& role, Json content) {
  return {{"role", role}, {"content", std::move(content)}};
}
Json part(const std::string& text) { return {{"type", "text"}, {"text", text}}; }
Json calling(Json content, Json arguments) {
  Json result = message("assistant", std::move(content));
  result["tool_calls"] = {{{"id", "call00001"},
                           {"type", "function"},
                           {"function", {{"name", "f"}, {"arguments", std::move(arguments)}}}}};
  return result;
}

std::string prompt(const ChatTemplate& chat_template, Json messages, bool generate = true,
                   bool go_on = false) {
  ChatTemplateInputs inputs;
  inputs.messages = std::move(messages);
  inputs.add_generation_prompt = generate;
  return render_prompt(chat_template, probe_traits(chat_template, {}), inputs, go_on);
}
std::string error_of(const ChatTemplate& chat_template, Json messages, bool generate = true,
                     bool go_on = false) {
  try {
    prompt(chat_template, std::move(messages), generate, go_on);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::invalid);
    return error.message();
  }
  return "";
}

TEST(ChatMessages, ProbesWhatATemplateTakes) {
  const TemplateTraits strict = probe_traits(ChatTemplate(kStrict), {});
  EXPECT_FALSE(strict.user_parts || strict.system_parts || strict.assistant_parts || strict.tool_parts);
  EXPECT_FALSE(strict.string_arguments || strict.null_content_with_calls);
  const TemplateTraits parts = probe_traits(ChatTemplate(kParts), {});
  EXPECT_TRUE(parts.user_parts && parts.system_parts && parts.assistant_parts && parts.tool_parts);
  EXPECT_TRUE(parts.string_arguments && parts.null_content_with_calls);
}

TEST(ChatMessages, PrintedListsDoNotCountAsHandlingParts) {
  EXPECT_FALSE(
      probe_traits(ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}"), {}).user_parts);
  EXPECT_FALSE(
      probe_traits(ChatTemplate("{% for m in messages %}{{ m.content|tojson }}{% endfor %}"), {}).user_parts);
}

TEST(ChatMessages, NullContentRendersAsEmptyText) {
  EXPECT_EQ(prompt(ChatTemplate(kStrict), {message("user", "q"), calling(nullptr, {{"x", 1}})}, false),
            "<user>q<end><assistant>[x=1]<end>");
  Json missing = {{"role", "assistant"}};
  EXPECT_EQ(prompt(ChatTemplate(kStrict), {missing}, false), "<assistant><end>");
}

TEST(ChatMessages, JoinsTextPartsForStringTemplates) {
  const Json messages = {message("user", Json::array({part("a"), part("b")}))};
  EXPECT_EQ(prompt(ChatTemplate(kStrict), messages), "<user>ab<end><assistant>");
  EXPECT_EQ(prompt(ChatTemplate(kParts), messages), "<user>a/b/");
}

TEST(ChatMessages, ArgumentsBecomeWhatTheTemplateWants) {
  const Json mapping = {{"b", 1}, {"a", "é<"}};
  const char* text = R"({"b": 1, "a": "é<"})";
  for (const Json& arguments : {mapping, Json(text)}) {
    EXPECT_EQ(prompt(ChatTemplate(kStrict), {calling("", arguments)}, false),
              "<assistant>[b=1][a=\"é<\"]<end>");
    EXPECT_EQ(prompt(ChatTemplate(kParts), {calling(nullptr, arguments)}),
              std::string("<assistant>(") + text + ")");
  }
  EXPECT_EQ(prompt(ChatTemplate(kStrict), {calling("", "")}, false), "<assistant><end>");
}

TEST(ChatMessages, ArgumentsKeepIntegersAndFloatsApart) {
  EXPECT_EQ(
      prompt(ChatTemplate(kStrict), {calling("", R"({"i": 1, "f": 1.0, "u": 18446744073709551615})")}, false),
      "<assistant>[i=1][f=1.0][u=18446744073709551615]<end>");
}

TEST(ChatMessages, RefusesWhatIsNoConversation) {
  const ChatTemplate strict(kStrict);
  const auto says = [&](Json messages, const std::string& text) {
    const std::string error = error_of(strict, std::move(messages));
    EXPECT_NE(error.find(text), std::string::npos) << error;
  };
  says(Json::array(), "at least one message");
  says(Json::object(), "must be an array");
  says({"hi"}, "messages[0]: a message must be an object");
  says({Json{{"content", "hi"}}}, "messages[0]: a message needs a string 'role'");
  says({message("user", 5)}, "messages[0].content: must be");
  says({message("user", Json::array({part("a"), {{"type", "image_url"}, {"image_url", Json::object()}}}))},
       "messages[0].content[1]: a part of type 'image_url' cannot be given to a text model");
  says({message("user", Json::array({Json{{"type", "text"}}}))}, "needs a string 'text'");
  says({calling("", R"({"a":)")}, "messages[0].tool_calls[0].function.arguments");
  says({calling("", "[1]")}, "must be a JSON object");
}

TEST(ChatMessages, ContinuesTheFinalMessage) {
  const ChatTemplate strict(kStrict), parts(kParts);
  const Json twice = {message("user", "ab"), message("assistant", "ab")};
  EXPECT_EQ(prompt(strict, twice, false, true), "<user>ab<end><assistant>ab");
  EXPECT_EQ(prompt(parts, {message("user", "q"), message("assistant", Json::array({part("x"), part("y ")}))},
                   false, true),
            "<user>q<assistant>x/y ");
  EXPECT_NE(error_of(strict, twice, true, true).find("exclude each other"), std::string::npos);
  EXPECT_NE(error_of(strict, {message("user", "q")}, false, true).find("assistant message at the end"),
            std::string::npos);
  EXPECT_NE(error_of(strict, {calling("", Json::object())}, false, true).find("must not call tools"),
            std::string::npos);
  EXPECT_NE(error_of(ChatTemplate("x"), twice, false, true).find("does not show the final message"),
            std::string::npos);
}

// What the real templates take; they are not part of this repository.
TEST(ChatMessages, ProbesRealTemplates) {
  const char* shared = std::getenv("ATOM_SHARED");
  if (shared == nullptr) GTEST_SKIP() << "ATOM_SHARED is not set";
  struct Expected {
    const char* name;
    bool user_parts, tool_parts, string_arguments, null_content;
  };
  for (const Expected& expected : {Expected{"qwen3", false, false, false, false},
                                   {"gpt_oss", false, false, false, false},
                                   {"llama3_3", false, false, false, false},
                                   {"deepseek_v3", false, false, true, true},
                                   {"deepseek_v3_1", false, false, true, false},
                                   {"glm_4_6", true, false, false, false},
                                   {"mistral_nemo", false, false, false, false},
                                   {"hermes3", false, false, false, false},
                                   {"kimi_k2", true, false, false, false},
                                   {"kimi_k2_thinking", true, true, false, false}}) {
    const std::string file = std::string(expected.name) + ".jinja";
    const ChatTemplate chat_template(read_file(std::string(shared) + "/templates/" + file, 1 << 20), file);
    ChatTemplateInputs inputs;
    inputs.bos_token = "<s>";
    inputs.eos_token = "</s>";
    if (expected.name == std::string("hermes3"))
      inputs.tools = Json::array();  // its template insists on a list
    const TemplateTraits traits = probe_traits(chat_template, inputs);
    EXPECT_EQ(traits.user_parts, expected.user_parts) << expected.name;
    EXPECT_EQ(traits.tool_parts, expected.tool_parts) << expected.name;
    EXPECT_EQ(traits.string_arguments, expected.string_arguments) << expected.name;
    EXPECT_EQ(traits.null_content_with_calls, expected.null_content) << expected.name;
    // Every shape that a client may send then renders, and shows its arguments.
    for (const Json& arguments : {Json{{"city", "Paris"}}, Json(R"({"city": "Paris"})")}) {
      inputs.messages = {message("user", Json::array({part("Where"), part("?")})),
                         calling(nullptr, arguments)};
      inputs.add_generation_prompt = false;
      EXPECT_NE(render_prompt(chat_template, traits, inputs).find("Paris"), std::string::npos)
          << expected.name;
    }
    inputs.messages = {message("user", "ab"), message("assistant", "ab")};
    const std::string text = render_prompt(chat_template, traits, inputs, true);
    EXPECT_EQ(text.substr(text.size() - 2), "ab") << expected.name;
    EXPECT_NE(text.find("ab"), text.size() - 2) << expected.name;
  }
}

}  // namespace
}  // namespace atom::text
