// The server's small parts: keys, life, stored responses, items of a response's input.
#include <gtest/gtest.h>

#include "server/api_error.h"
#include "server/api_keys.h"
#include "server/http_message.h"
#include "server/life.h"
#include "server/response_store.h"
#include "server/responses_input.h"
#include "server/web_page.h"

namespace atom::server {
namespace {

TEST(ApiKeys, OnlyWholeKeysMatchAndFingerprintsHideThem) {
  const ApiKeys keys({"secret-key-1", "secret-key-2"});
  EXPECT_TRUE(keys.required());
  EXPECT_FALSE(keys.match(""));
  EXPECT_FALSE(keys.match("secret-key-"));
  EXPECT_FALSE(keys.match("secret-key-11"));
  ASSERT_TRUE(keys.match("secret-key-2"));
  EXPECT_NE(keys.match("secret-key-1"), keys.match("secret-key-2"));
  EXPECT_EQ(keys.match("secret-key-1")->find("secret"), std::string::npos);
  EXPECT_FALSE(ApiKeys({}).required());
}

TEST(HttpMessage, TargetsEscapesAndTypesAreReadInEveryForm) {
  for (const auto& [target, path] : {std::pair("/health?a=http://b/c", "/health?a=http://b/c"),
                                     {"http://host:8000/health", "/health"},
                                     {"HTTPS://host", "/"},
                                     {"http://host?a=b", "/?a=b"},
                                     {"*", "*"}}) {
    EXPECT_EQ(origin_form(target), path);
  }
  EXPECT_EQ(percent_decoded("org%2Fname%2f%zz%4"), "org/name/%zz%4");
  EXPECT_EQ(media_type("application/json"), "application/json");
  EXPECT_EQ(media_type("Application/JSON ; charset=utf-8"), "application/json");
  EXPECT_EQ(media_type("text/json"), "text/json");
}

TEST(Life, SaysWhereLoadingIsAndWhetherRequestsAreTaken) {
  Life life;
  EXPECT_EQ(life.report()["status"], "starting");
  EXPECT_EQ(life.http_status(), 503);
  life.progress("load", 43, 100);
  EXPECT_EQ(life.report()["status"], "loading");
  EXPECT_DOUBLE_EQ(life.report()["progress"], 0.43);
  EXPECT_FALSE(life.accepts_requests());
  life.ready();
  EXPECT_EQ(life.report(), Json::parse(R"({"status": "ready"})"));
  EXPECT_EQ(life.http_status(), 200);
  life.progress("load", 1, 2);  // a straggler changes nothing
  EXPECT_EQ(life.report()["status"], "ready");
  life.stuck(3);
  EXPECT_EQ(life.report()["status"], "stuck");
  EXPECT_FALSE(life.accepts_requests());
  EXPECT_EQ(life.http_status(), 503);
  life.stuck(0);
  life.trouble("a step hung");
  EXPECT_EQ(life.report()["status"], "degraded");
  EXPECT_EQ(life.http_status(), 200);
  life.drain();
  EXPECT_EQ(life.report()["status"], "draining");
  life.fail("gone");
  EXPECT_EQ(life.report()["message"], "gone");
}

TEST(ResponseStore, ForgetsTheOldestAndShowsEntriesToTheirOwnerOnly) {
  ResponseStore store;
  for (size_t i = 0; i <= ResponseStore::kMaxResponses; ++i) {
    store.put("r" + std::to_string(i), {Json{{"n", i}}, Json::array(), "a"});
  }
  EXPECT_FALSE(store.get("r0", "a"));
  ASSERT_TRUE(store.get("r1", "a"));
  EXPECT_FALSE(store.get("r1", "b"));
  EXPECT_FALSE(store.remove("r1", "b"));
  EXPECT_TRUE(store.remove("r1", "a"));
  EXPECT_FALSE(store.get("r1", "a"));
  const std::string big(ResponseStore::kMaxBytes / 3, 'x');
  for (int i = 0; i < 4; ++i) store.put("big" + std::to_string(i), {Json(big), Json::array(), "a"});
  EXPECT_FALSE(store.get("r4096", "a"));
  EXPECT_FALSE(store.get("big0", "a"));
  EXPECT_TRUE(store.get("big3", "a"));
}

TEST(ResponsesInput, CallsResultsAndReasoningBecomeMessages) {
  Json messages = Json::array();
  add_response_input(Json::parse(R"([
    {"role": "user", "content": "q"},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\"a\":1}"},
    {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "1"},
    {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}])"),
                     messages);
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[1]["reasoning_content"], "hm");
  EXPECT_EQ(messages[1]["content"], "I look.");
  EXPECT_EQ(messages[1]["tool_calls"].size(), 2u);
  EXPECT_EQ(messages[1]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(messages[2], Json({{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "1"}}));
  EXPECT_EQ(messages[3]["content"], "ab");
}

TEST(ResponsesInput, OtherItemsAreRefusedWithTheirPlace) {
  for (const auto& [text, param] :
       {std::pair(R"([{"type": "computer_call"}])", "input[0].type"),
        {R"([{"role": "user", "content": [{"type": "input_image"}]}])", "input[0].content[0].type"},
        {R"([{"role": "user", "content": "a", "x": 1}])", "input[0].x"},
        {R"({"a": 1})", "input"}}) {
    Json messages = Json::array();
    try {
      add_response_input(Json::parse(text), messages);
      ADD_FAILURE() << text;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.param, param);
    }
  }
}

TEST(WebPage, ServesItsFilesAndNoOthers) {
  EXPECT_TRUE(web_page("/"));
  EXPECT_TRUE(web_page("/app.js"));
  EXPECT_FALSE(web_page("/../etc/passwd"));
  EXPECT_FALSE(web_page(""));
}

}  // namespace
}  // namespace atom::server
