// Chat templates as checkpoints carry them.
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <map>
#include <thread>

#include "base/file.h"

namespace atom::text {
namespace {

constexpr const char* kChatMl =
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";

Json user(const std::string& text) { return {{"role", "user"}, {"content", text}}; }

TEST(ChatTemplate, RendersAConversation) {
  ChatTemplateInputs inputs;
  inputs.messages = Json::array({user("hi")});
  inputs.bos_token = "<s>";
  EXPECT_EQ(ChatTemplate(kChatMl).render(inputs), "<s><|user|>hi\n<|assistant|>");
  inputs.add_generation_prompt = false;
  inputs.eos_token = "</s>";
  EXPECT_EQ(ChatTemplate(kChatMl).render(inputs), "<s><|user|>hi</s>\n");
}

TEST(ChatTemplate, AbsentTokensAreUndefinedAndAbsentToolsAreNone) {
  EXPECT_EQ(
      ChatTemplate("{{ bos_token is defined }} {{ tools is defined }} {{ tools is none }} {{ documents }}")
          .render({}),
      "False True True None");
}

TEST(ChatTemplate, KwargsWin) {
  ChatTemplateInputs inputs;
  inputs.kwargs = {{"add_generation_prompt", "mine"}, {"bos_token", 1.0}, {"pad_token", "theirs"}};
  inputs.bos_token = "<s>";
  inputs.special_tokens = {{"pad_token", "<pad>"}, {"unk_token", "<unk>"}};
  EXPECT_EQ(ChatTemplate("{{ add_generation_prompt }} {{ bos_token }} {{ pad_token }} {{ unk_token }}")
                .render(inputs),
            "mine 1.0 theirs <unk>");
}

TEST(ChatTemplate, TellsWhatItReads) {
  const ChatTemplate t(
      "{# documents #}tools {% set thinking = 'developer' %}{% if messages[0].role in ['user', x.strict] %}"
      "{{ enable | default(style) }}{% endif %}");
  for (const char* read : {"messages", "x", "enable", "style"}) EXPECT_TRUE(t.reads(read)) << read;
  for (const char* not_read : {"documents", "tools", "thinking", "role", "strict", "user", "default"})
    EXPECT_FALSE(t.reads(not_read)) << not_read;
  EXPECT_TRUE(t.has_text("developer") && t.has_text("user"));
  EXPECT_FALSE(t.has_text("tools") || t.has_text("develop"));
}

TEST(ChatTemplate, ToJsonKeepsOrderAndNumbers) {
  ChatTemplateInputs inputs;
  inputs.tools = parse_json(R"([{"b":1,"a":[true,null,1.0,1e20,"é<&'"]}])", "tools");
  EXPECT_EQ(ChatTemplate("{{ tools[0]|tojson }}").render(inputs),
            R"({"b": 1, "a": [true, null, 1.0, 1e+20, "é<&'"]})");
}

TEST(ChatTemplate, RaisedErrorsCarryTheTemplatesWords) {
  try {
    ChatTemplate("{{ raise_exception('boom') }}").render({});
    FAIL();
  } catch (const TemplateError& error) {
    EXPECT_TRUE(error.raised());
    EXPECT_EQ(error.message(), "boom");
    EXPECT_EQ(error.code(), Errc::invalid);
  }
}

TEST(ChatTemplate, SyntaxErrorsNameTheLine) {
  try {
    ChatTemplate("a\n{% for %}", "tokenizer_config.json");
    FAIL();
  } catch (const TemplateError& error) {
    EXPECT_FALSE(error.raised());
    EXPECT_EQ(error.message().rfind("tokenizer_config.json: line 2: ", 0), 0u) << error.message();
  }
}

TEST(ChatTemplate, OneTemplateServesManyThreads) {
  const ChatTemplate shared(kChatMl);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&shared, t] {
      ChatTemplateInputs inputs;
      inputs.messages = Json::array({user(std::to_string(t))});
      for (int i = 0; i < 200; ++i)
        EXPECT_EQ(shared.render(inputs), "<|user|>" + std::to_string(t) + "\n<|assistant|>");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The golden renders of real templates; they are not part of this repository.
TEST(ChatTemplate, RendersRealTemplatesAsTransformersDoes) {
  const char* shared = std::getenv("ATOM_SHARED");
  if (shared == nullptr) GTEST_SKIP() << "ATOM_SHARED is not set";
  const std::string folder = std::string(shared) + "/templates/";
  std::map<std::string, std::unique_ptr<ChatTemplate>> templates;
  int count = 0;
  for (const Json& test : read_json_file(folder + "golden.json")) {
    const auto file = test["template"].get<std::string>();
    auto& chat_template = templates[file];
    if (!chat_template)
      chat_template = std::make_unique<ChatTemplate>(read_file(folder + file, 1 << 20), file);
    ChatTemplateInputs inputs;
    inputs.messages = test["messages"];
    inputs.tools = test["tools"];
    inputs.kwargs = test["kwargs"];
    inputs.add_generation_prompt = test["add_generation_prompt"].get<bool>();
    if (!test["bos_token"].is_null()) inputs.bos_token = test["bos_token"].get<std::string>();
    if (!test["eos_token"].is_null()) inputs.eos_token = test["eos_token"].get<std::string>();
    std::tm now{};
    ASSERT_NE(strptime(test["now"].get<std::string>().c_str(), "%Y-%m-%dT%H:%M:%S", &now), nullptr);
    inputs.now = now;
    const auto name = test["name"].get<std::string>();
    ++count;
    try {
      const std::string got = chat_template->render(inputs);
      EXPECT_FALSE(test.contains("error")) << name;
      if (!test.contains("error")) {
        EXPECT_EQ(got, test["expected"].get<std::string>()) << name;
      }
    } catch (const TemplateError& error) {
      EXPECT_TRUE(test.contains("error")) << name << ": " << error.message();
      const bool raised = test.contains("error") && test["error_type"] == "TemplateError";
      EXPECT_EQ(error.raised(), raised) << name << ": " << error.message();
      if (raised) {
        EXPECT_EQ(error.message(), test["error_message"].get<std::string>()) << name;
      }
    }
  }
  EXPECT_EQ(count, 644);
}

TEST(ChatTemplate, RendersALongConversationQuickly) {
  const ChatTemplate chat_template(kChatMl);
  ChatTemplateInputs inputs;
  for (int i = 0; i < 100; ++i) inputs.messages.push_back(user(std::string(500, 'x')));
  const std::clock_t start = std::clock();
  for (int i = 0; i < 10; ++i) chat_template.render(inputs);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC / 10;
  EXPECT_LT(seconds, 0.05);  // far more than it takes, for instrumented builds
}

}  // namespace
}  // namespace atom::text
