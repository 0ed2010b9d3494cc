// The protocols without an engine: scripted outputs in, the bytes that clients get out.
#include <gtest/gtest.h>

#include "server/chat_api.h"
#include "server/chat_task.h"
#include "server/completions_api.h"
#include "server/messages_api.h"
#include "server/model_api.h"
#include "server/responses_api.h"
#include "server/test_model.h"

namespace atom::server {
namespace {

class Protocols : public testing::Test {
 protected:
  static OutputDelta delta(const std::string& text, std::optional<FinishReason> finish = {}) {
    OutputDelta d;
    d.text = text;
    for (const char byte : text) d.token_ids.push_back(static_cast<uint8_t>(byte));
    d.finish = finish;
    d.usage = {.prompt_tokens = 7, .cached_tokens = 2, .output_tokens = 5};
    return d;
  }
  // What a writer makes of texts, the last of which finishes.
  static std::string run(AnswerWriter& writer, const std::vector<std::string>& texts,
                         FinishReason reason = FinishReason::stop) {
    std::string out;
    if (writer.streams()) writer.begin(out);
    for (size_t i = 0; i < texts.size(); ++i) {
      const bool last = i + 1 == texts.size();
      writer.take(0, delta(texts[i], last ? std::optional(reason) : std::nullopt), out);
    }
    writer.end(out);
    return out;
  }
  static std::vector<Json> events(const std::string& stream) {
    std::vector<Json> result;
    for (size_t pos = 0; (pos = stream.find("data: {", pos)) != std::string::npos;) {
      const size_t end = stream.find('\n', pos);
      result.push_back(Json::parse(stream.substr(pos + 6, end - pos - 6)));
      pos = end;
    }
    return result;
  }
  static Json chat(Json more = Json::object()) {
    Json body = {{"model", "m"}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
    body.update(more);
    return body;
  }

  std::unique_ptr<TextModel> text_ = test_text_model();
  ServedModel model_ = test_model(*text_);
};

TEST_F(Protocols, AChatsPromptIsWhatTheTemplateMakes) {
  GenerationPlan plan = plan_chat(chat(), model_);
  ASSERT_EQ(plan.requests.size(), 1u);
  const std::vector<int32_t>& ids = plan.requests[0].prompt;
  EXPECT_EQ(ids[0], kTestBos);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), kTestBos), 1);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), kTestTurn), 2);
  EXPECT_EQ(plan.requests[0].max_tokens, model_.max_model_len - static_cast<int64_t>(ids.size()));
}

TEST_F(Protocols, AStreamedChatIsTheWholeAnswerInPiecesHoweverItIsCut) {
  const std::string text = "Hello, world.";
  GenerationPlan whole = plan_chat(chat(), model_);
  const Json answer = Json::parse(run(*whole.writer, {text}));
  EXPECT_EQ(answer["choices"][0]["message"]["content"], text);
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 2);
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    GenerationPlan plan = plan_chat(chat({{"stream", true}}), model_);
    std::string joined;
    int finished = 0;
    for (const Json& e : events(run(*plan.writer, {text.substr(0, cut), text.substr(cut)}))) {
      joined += e["choices"][0]["delta"].value("content", "");
      finished += !e["choices"][0]["finish_reason"].is_null();
    }
    EXPECT_EQ(joined, text);
    EXPECT_EQ(finished, 1);
  }
}

TEST_F(Protocols, AMatchedStopSequenceIsNamedAndNotShown) {
  const Json body = {{"model", "m"},
                     {"max_tokens", 9},
                     {"stop_sequences", {"D", "END", "ND"}},
                     {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  GenerationPlan plan = plan_messages(body, model_);
  EXPECT_TRUE(plan.requests[0].include_stop);
  const Json answer = Json::parse(run(*plan.writer, {"some te", "xtEND"}));
  EXPECT_EQ(answer["content"][0]["text"], "some text");
  EXPECT_EQ(answer["stop_reason"], "stop_sequence");
  EXPECT_EQ(answer["stop_sequence"], "END");
  EXPECT_EQ(answer["usage"]["input_tokens"], 5);
  EXPECT_EQ(answer["usage"]["cache_read_input_tokens"], 2);
}

TEST_F(Protocols, AnEndTokenIsNoStopSequenceAndALengthIsNamed) {
  const Json body = {
      {"model", "m"}, {"max_tokens", 9}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  GenerationPlan plan = plan_messages(body, model_);
  std::string out;
  OutputDelta last = delta("done", FinishReason::stop);
  last.token_ids.push_back(kTestEnd);
  plan.writer->take(0, std::move(last), out);
  plan.writer->end(out);
  EXPECT_EQ(Json::parse(out)["stop_reason"], "end_turn");
  GenerationPlan cut = plan_messages(body, model_);
  EXPECT_EQ(Json::parse(run(*cut.writer, {"x"}, FinishReason::length))["stop_reason"], "max_tokens");
}

TEST_F(Protocols, AnEmptyAnswerIsStillWhole) {
  GenerationPlan chat_plan = plan_chat(chat(), model_);
  EXPECT_EQ(Json::parse(run(*chat_plan.writer, {""}))["choices"][0]["message"]["content"], "");
  const Json body = {{"model", "m"},
                     {"max_tokens", 9},
                     {"stream", true},
                     {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  GenerationPlan messages = plan_messages(body, model_);
  EXPECT_EQ(events(run(*messages.writer, {""})).back()["type"], "message_stop");
  ResponseStore store;
  GenerationPlan response = plan_response({{"model", "m"}, {"input", "hi"}}, model_, store, "");
  EXPECT_EQ(Json::parse(run(*response.writer, {""}))["output"], Json::array());
}

TEST_F(Protocols, AContinuedResponseHasTheConversationBeforeIt) {
  ResponseStore store;
  GenerationPlan first =
      plan_response({{"model", "m"}, {"input", "one"}, {"instructions", "brief"}}, model_, store, "k");
  const Json answer = Json::parse(run(*first.writer, {"two"}));
  const Json more = {{"model", "m"}, {"input", "three"}, {"previous_response_id", answer["id"]}};
  GenerationPlan second = plan_response(more, model_, store, "k");
  const std::string prompt = text_->tokenizer().decode(second.requests[0].prompt, false).value();
  EXPECT_EQ(prompt,
            "<|bos|><|turn|>user one<|end|><|turn|>assistant two<|end|><|turn|>user "
            "three<|end|><|turn|>assistant ");
  EXPECT_THROW(plan_response(more, model_, store, "another key"), ApiError);
}

TEST_F(Protocols, AnErrorInAStreamIsAnEventInTheProtocolsForm) {
  const ApiError error(503, "engine_stuck", "it hangs");
  GenerationPlan plan = plan_chat(chat({{"stream", true}}), model_);
  EXPECT_EQ(events(plan.writer->error(error, true))[0]["error"]["code"], "engine_stuck");
  EXPECT_EQ(Json::parse(plan.writer->error(error, false))["error"]["type"], "service_unavailable_error");
  const Json body = {
      {"model", "m"}, {"max_tokens", 9}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  EXPECT_EQ(events(plan_messages(body, model_).writer->error(error, true))[0]["type"], "error");
}

TEST_F(Protocols, MarksThatAreSpecialTokensShowWhereTheFormatNeedsThem) {
  model_.visible_ids = {kTestTurn};
  GenerationPlan plan = plan_chat(chat({{"stop", "END"}}), model_);
  std::string out;
  OutputDelta d = delta("a");
  d.token_ids = {'a', kTestTurn, kTestBos, 'b', 'E', 'N'};
  plan.writer->take(0, std::move(d), out);
  OutputDelta last = delta("", FinishReason::stop);
  last.token_ids = {'D'};
  plan.writer->take(0, std::move(last), out);
  plan.writer->end(out);
  EXPECT_EQ(Json::parse(out)["choices"][0]["message"]["content"], "a<|turn|>b");
}

TEST_F(Protocols, StopTextsCountFromMinTokensOnWhereMarksShowToo) {
  model_.visible_ids = {kTestTurn};
  GenerationPlan plan = plan_chat(chat({{"stop", "END"}, {"min_tokens", 4}}), model_);
  const Json answer = Json::parse(run(*plan.writer, {"ENDE", "NDEND"}));
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "END");
}

TEST_F(Protocols, EchoedLogProbabilitiesOfLaterSamplesWaitForTheFirst) {
  const Json body = {{"model", "m"}, {"prompt", "abc"}, {"n", 2}, {"echo", true}, {"logprobs", 0}};
  GenerationPlan plan = plan_completions(body, model_);
  const auto entry = [](int32_t id) { return std::vector<TokenLogprob>{{id, -1.0f}}; };
  const auto sampled = [&](int32_t index, const std::string& text, std::optional<FinishReason> finish = {}) {
    OutputDelta d = delta(text, finish);
    d.index = index;
    for (const int32_t id : d.token_ids) d.logprobs.push_back(entry(id));
    return d;
  };
  std::string out;
  plan.writer->take(0, sampled(1, "x"), out);  // its prompt was cached
  OutputDelta chunk;
  chunk.prompt_logprobs = {entry('a'), entry('b')};
  plan.writer->take(0, std::move(chunk), out);
  plan.writer->take(0, sampled(1, "y", FinishReason::length), out);
  OutputDelta last = sampled(0, "xy", FinishReason::length);
  last.prompt_logprobs = {entry('c')};
  plan.writer->take(0, std::move(last), out);
  plan.writer->end(out);
  const Json choices = Json::parse(out)["choices"];
  const Json tokens = {"<|bos|>", "a", "b", "c", "x", "y"};
  for (const Json& choice : choices) {
    EXPECT_EQ(choice["text"], "abcxy");
    EXPECT_EQ(choice["logprobs"]["tokens"], tokens);
    EXPECT_EQ(choice["finish_reason"], "length");
  }
}

TEST_F(Protocols, AResponseCountsTheTokensOfItsReasoning) {
  model_.format = {text::ResponseFormat::plain, text::ReasoningFormat::think, "by hand"};
  ResponseStore store;
  GenerationPlan plan = plan_response({{"model", "m"}, {"input", "hi"}}, model_, store, "");
  const Json answer = Json::parse(run(*plan.writer, {"<think>hm</think>yes"}));
  EXPECT_EQ(answer["output"][0]["content"][0]["text"], "hm");
  EXPECT_EQ(answer["usage"]["output_tokens_details"]["reasoning_tokens"], 2);
}

TEST_F(Protocols, UsageCountsWhatASecondCallThatWasNotWantedCutShort) {
  model_.format = {text::ResponseFormat::hermes, text::ReasoningFormat::none, "by hand"};
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  const auto answer_of = [&](GenerationPlan plan) {
    std::string out;
    OutputDelta calls = delta(call + call);
    calls.usage = {};
    plan.writer->take(0, std::move(calls), out);
    EXPECT_TRUE(plan.writer->satisfied());
    plan.writer->take(0, delta("more", FinishReason::cancelled), out);
    plan.writer->end(out);
    return Json::parse(out);
  };
  const Json function = {{"name", "f"}, {"parameters", {{"type", "object"}}}};
  const Json chat_tools = Json::array({{{"type", "function"}, {"function", function}}});
  const Json chatted =
      answer_of(plan_chat(chat({{"tools", chat_tools}, {"parallel_tool_calls", false}}), model_));
  EXPECT_EQ(chatted["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(chatted["choices"][0]["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(chatted["usage"]["total_tokens"], 12);
  Json flat = {{"type", "function"}};
  flat.update(function);
  ResponseStore store;
  const Json responded = answer_of(plan_response(
      {{"model", "m"}, {"input", "hi"}, {"tools", Json::array({flat})}, {"parallel_tool_calls", false}},
      model_, store, ""));
  EXPECT_EQ(responded["status"], "completed");
  EXPECT_EQ(responded["usage"]["total_tokens"], 12);
  const Json message = answer_of(
      plan_messages({{"model", "m"},
                     {"max_tokens", 9},
                     {"tools", Json::array({{{"name", "f"}, {"input_schema", {{"type", "object"}}}}})},
                     {"tool_choice", {{"type", "auto"}, {"disable_parallel_tool_use", true}}},
                     {"messages", {{{"role", "user"}, {"content", "hi"}}}}},
                    model_));
  EXPECT_EQ(message["stop_reason"], "tool_use");
  EXPECT_EQ(message["usage"]["output_tokens"], 5);
}

TEST_F(Protocols, ACacheSaltHasALimit) {
  const std::string salt(256, 's');
  EXPECT_EQ(plan_chat(chat({{"cache_salt", salt}}), model_).requests[0].cache_salt, salt);
  EXPECT_THROW(plan_chat(chat({{"cache_salt", salt + 's'}}), model_), ApiError);
}

TEST_F(Protocols, ATextToTokenizeHasALimit) {
  EXPECT_EQ(tokenize({{"prompt", std::string(999'999, 'a')}}, model_)["count"], 1'000'000);
  EXPECT_THROW(tokenize({{"prompt", std::string(1'000'000, 'a')}}, model_), ApiError);
}

TEST_F(Protocols, ToolsOfEveryProtocolReachTheTemplateInOneForm) {
  const Json parameters = {{"type", "object"}};
  const Json function = {{"name", "f"}, {"description", "d"}, {"parameters", parameters}};
  const Json chat_tools = Json::array({{{"type", "function"}, {"function", function}}});
  Json flat = {{"type", "function"}};
  flat.update(function);
  const Json anthropic_tools =
      Json::array({{{"name", "f"}, {"description", "d"}, {"input_schema", parameters}}});
  const auto shows = [&](const GenerationPlan& plan) {
    return text_->tokenizer()
               .decode(plan.requests[0].prompt, false)
               .value()
               .find(
                   R"([{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}])") !=
           std::string::npos;
  };
  EXPECT_TRUE(shows(plan_chat(chat({{"tools", chat_tools}}), model_)));
  EXPECT_FALSE(shows(plan_chat(chat({{"tools", chat_tools}, {"tool_choice", "none"}}), model_)));
  ResponseStore store;
  EXPECT_TRUE(shows(
      plan_response({{"model", "m"}, {"input", "hi"}, {"tools", Json::array({flat})}}, model_, store, "")));
  EXPECT_TRUE(shows(plan_messages({{"model", "m"},
                                   {"max_tokens", 9},
                                   {"tools", anthropic_tools},
                                   {"messages", {{{"role", "user"}, {"content", "hi"}}}}},
                                  model_)));
  EXPECT_THROW(plan_chat(chat({{"tools", {chat_tools[0], chat_tools[0]}}}), model_), ApiError);
}

}  // namespace
}  // namespace atom::server
