// Tests of the tokenizer as a whole, of its loader and of the streaming detokenizer.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>
#include <thread>

#include "base/json.h"
#include "text/detokenizer.h"

namespace atom::text {
namespace {

using Ids = std::vector<int32_t>;

const Json& pipelines() {
  static const Json json = read_json_file(ATOM_TEST_DATA "/data/tokenizer/pipelines.json");
  return json;
}

// Byte-level words "hello" and " hello" with merges, and whatever `edit` adds.
Json tiny() {
  return parse_json(R"({
    "added_tokens": [],
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE",
      "vocab": {"h": 10, "e": 11, "l": 12, "o": 13, "Ġ": 14, "he": 15, "ll": 16, "hell": 17, "hello": 1, "Ġhello": 2},
      "merges": [["h", "e"], ["l", "l"], ["he", "ll"], ["hell", "o"], ["Ġ", "hello"]]}})",
                    "tiny");
}
std::unique_ptr<Tokenizer> load(const Json& json) { return Tokenizer::from_json(json.dump(), "t.json"); }

TEST(Tokenizer, EqualsTheTokenizersPackage) {
  for (size_t i = 0; i < pipelines().size(); ++i) {
    const auto tokenizer = load(pipelines()[i]["tokenizer"]);
    for (const Json& test : pipelines()[i]["cases"]) {
      const auto text = test["text"].get<std::string>();
      const Ids ids = test["ids"].get<Ids>();
      EXPECT_EQ(tokenizer->encode(text), ids) << i << " " << test["text"];
      EXPECT_EQ(tokenizer->encode(text, {.add_special_tokens = false}), test["bare"].get<Ids>())
          << i << " " << test["text"];
      EXPECT_EQ(tokenizer->encode(text, {.add_special_tokens = false, .special_in_text = false}),
                test["plain"].get<Ids>())
          << i << " " << test["text"];
      if (!test.contains("decoded")) continue;
      EXPECT_EQ(tokenizer->decode(ids, false).take(), test["decoded"].get<std::string>())
          << i << " " << test["text"];
      EXPECT_EQ(tokenizer->decode(ids, true).take(), test["skipped"].get<std::string>())
          << i << " " << test["text"];
    }
  }
}

TEST(Tokenizer, ReadsMergesAsPairsAndAsStrings) {
  Json json = tiny();
  const Ids ids = load(json)->encode("hello hello");
  EXPECT_EQ(ids, (Ids{1, 2}));
  for (Json& merge : json["model"]["merges"])
    merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  EXPECT_EQ(load(json)->encode("hello hello"), ids);
}

TEST(Tokenizer, ReadsTheModelInAnyOrder) {
  const Json json = tiny();
  const Json& model = json["model"];
  Json turned = {{"merges", model["merges"]}, {"vocab", model["vocab"]}, {"type", "BPE"}};
  EXPECT_EQ(load({{"model", turned}, {"pre_tokenizer", json["pre_tokenizer"]}})->encode("hello hello"),
            (Ids{1, 2}));
}

TEST(Tokenizer, TakesAWholeWordBeforeMergesOnlyWhenAsked) {
  Json json = tiny();
  json["model"]["vocab"]["ollo"] = 30;
  EXPECT_EQ(load(json)->encode("ollo"), (Ids{13, 16, 13}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(load(json)->encode("ollo"), (Ids{30}));
}

TEST(Tokenizer, RespectsRstripOfASpecialToken) {
  Json json = tiny();
  json["added_tokens"] = {{{"id", 100}, {"content", "<|u|>"}, {"special", true}, {"rstrip", true}}};
  EXPECT_EQ(load(json)->encode("<|u|> hello"), (Ids{100, 1}));
  json["added_tokens"][0]["rstrip"] = false;
  EXPECT_EQ(load(json)->encode("<|u|> hello"), (Ids{100, 2}));
}

TEST(Tokenizer, KeepsSpecialTokensOutOfUserText) {
  Json json = tiny();
  json["model"]["ignore_merges"] = true;
  json["added_tokens"] = {{{"id", 1}, {"content", "hello"}, {"special", true}}};
  const auto tokenizer = load(json);
  EXPECT_EQ(tokenizer->encode("hello"), (Ids{1}));
  EXPECT_EQ(tokenizer->encode("hello", {.special_in_text = false}), (Ids{17, 13}));
}

TEST(Tokenizer, AnswersAboutTokens) {
  Json json = tiny();
  json["added_tokens"] = {{{"id", 40}, {"content", "<s>"}, {"special", true}},
                          {{"id", 41}, {"content", "\u00E9!"}}};
  const auto tokenizer = load(json);
  EXPECT_EQ(tokenizer->vocab_size(), 42);
  EXPECT_EQ(tokenizer->token_to_id("\u0120hello"), 2);
  EXPECT_EQ(tokenizer->token_to_id("<s>"), 40);
  EXPECT_EQ(tokenizer->token_to_id("none"), std::nullopt);
  EXPECT_EQ(tokenizer->id_to_token(2), "\u0120hello");
  EXPECT_EQ(tokenizer->token_bytes(2), " hello");
  EXPECT_EQ(tokenizer->token_bytes(41), "\u00E9!");  // not in the byte alphabet
  EXPECT_TRUE(tokenizer->is_special(40));
  EXPECT_FALSE(tokenizer->is_special(41));
  for (const int32_t id : {-1, 0, 39, 42, INT32_MAX, INT32_MIN}) {
    EXPECT_FALSE(tokenizer->has(id));
    EXPECT_EQ(tokenizer->id_to_token(id), "");
    EXPECT_EQ(tokenizer->token_bytes(id), "");
    EXPECT_FALSE(tokenizer->is_special(id));
    const Result<std::string> text = tokenizer->decode(Ids{1, id}, false);
    ASSERT_FALSE(text.ok());
    EXPECT_NE(text.error().message().find(std::to_string(id)), std::string::npos);
  }
}

TEST(Tokenizer, TakesIllFormedTextAsReplacementCharacters) {
  const auto tokenizer = load(pipelines()[0]["tokenizer"]);
  EXPECT_EQ(tokenizer->encode("the\xFF\xE4\xB8 the"), tokenizer->encode("the\uFFFD\uFFFD the"));
}

TEST(Tokenizer, RefusesBadFiles) {
  const auto refusal = [](const std::string& json) {
    try {
      Tokenizer::from_json(json, "t.json");
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Errc::invalid);
      EXPECT_TRUE(e.message().starts_with("t.json: ")) << e.message();
      return e.message();
    }
    return std::string();
  };
  const auto model = [](std::string_view body) {
    return fmt::format(R"({{"model":{{"type":"BPE",{}}}}})", body);
  };
  for (const std::string& json :
       {std::string(), std::string("{"), std::string("[]"), std::string("{}"), std::string("null"),
        std::string(R"({"model":3})"), std::string(R"({"model":{}})"), tiny().dump() + "x",
        std::string(R"({"model":{"vocab":{},"merges":[]},"model":{}})")}) {
    EXPECT_NE(refusal(json), "") << json.substr(0, 60);
  }
  EXPECT_NE(
      refusal(R"({"model":{"type":"Unigram","vocab":[["a",0.0]]}})").find("\"Unigram\" is not supported"),
      std::string::npos);
  EXPECT_NE(refusal(R"({"model":{"type":"WordPiece","vocab":{}}})").find("\"WordPiece\""), std::string::npos);
  EXPECT_NE(refusal(model(R"("vocab":{"a":0})")).find("model.merges is missing"), std::string::npos);
  EXPECT_NE(refusal(model(R"("vocab":{"a":0,"b":0},"merges":[])")).find("id 0 is given to"),
            std::string::npos);
  EXPECT_NE(refusal(model(R"("vocab":{"a":0,"a":1},"merges":[])")).find("listed twice"), std::string::npos);
  EXPECT_NE(refusal(model(R"("vocab":{"a":4194304},"merges":[])")).find("model.vocab[\"a\"]"),
            std::string::npos);
  EXPECT_NE(refusal(model(R"("vocab":{"a":-1},"merges":[])")).find("model.vocab[\"a\"]"), std::string::npos);
  for (const char* merge :
       {R"("ab")", R"("a b c")", R"(["a"])", R"(["a","b","c"])", R"(["a",1])", "7", R"("a x")", R"("a b")"}) {
    const std::string message =
        refusal(model(fmt::format(R"("vocab":{{"a":0,"b":1}},"merges":[{}])", merge)));
    EXPECT_NE(message, "") << merge;
  }
  EXPECT_NE(refusal(model(R"("vocab":{"a":0,"b":1},"merges":["a b"])"))
                .find("model.merges[0]: \"ab\" is not in the vocabulary"),
            std::string::npos);
  EXPECT_NE(refusal(model(R"("vocab":{},"merges":[],"dropout":0.1)")).find("model.dropout"),
            std::string::npos);
  EXPECT_NE(
      refusal(model(R"("vocab":{},"merges":[],"end_of_word_suffix":"</w>")")).find("end_of_word_suffix"),
      std::string::npos);
  EXPECT_NE(refusal(R"({"added_tokens":[{"id":0,"content":"b"}],"model":{"vocab":{"a":0},"merges":[]}})")
                .find("added_tokens[0]"),
            std::string::npos);
  EXPECT_NE(refusal(std::string(5000, '[')), "");
  EXPECT_NE(refusal(R"({"normalizer":)" + std::string(600, '[') + std::string(600, ']') + "}"), "");
  EXPECT_THROW(Tokenizer::from_file("/nonexistent/tokenizer.json"), Error);
}

TEST(Tokenizer, IsSafeFromManyThreads) {
  const auto tokenizer = load(pipelines()[0]["tokenizer"]);
  const Json& cases = pipelines()[0]["cases"];
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        for (const Json& test : cases) {
          const Ids ids = test["ids"].get<Ids>();
          if (tokenizer->encode(test["text"].get<std::string>()) != ids) ++wrong;
          if (test.contains("skipped") &&
              tokenizer->decode(ids, true).take() != test["skipped"].get<std::string>())
            ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Feeds random ids, ill-formed byte runs included, in random chunks.
TEST(Detokenizer, EqualsDecodeForEveryChunking) {
  std::mt19937 random(11);
  for (const Json& pipeline : pipelines()) {
    const auto tokenizer = load(pipeline["tokenizer"]);
    Ids known;
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      if (tokenizer->has(id)) known.push_back(id);
    }
    for (int i = 0; i < 200; ++i) {
      Ids ids(random() % 20);
      for (int32_t& id : ids) id = known[random() % known.size()];
      const bool skip = random() % 2 == 0;
      Detokenizer stream(*tokenizer, skip);
      std::string text;
      for (size_t at = 0; at < ids.size();) {
        const size_t size = std::min<size_t>(1 + random() % 3, ids.size() - at);
        const std::string delta = stream.feed(std::span(ids).subspan(at, size)).take();
        EXPECT_EQ(delta.find('\xFF'), std::string::npos);
        text += delta;
        at += size;
      }
      text += stream.flush();
      ASSERT_EQ(text, tokenizer->decode(ids, skip).take());
    }
  }
}

TEST(Detokenizer, WaitsForTheLastByteOfACharacter) {
  const auto tokenizer = load(pipelines()[0]["tokenizer"]);
  const Ids ids = tokenizer->encode("\U0001F600", {.add_special_tokens = false});
  ASSERT_EQ(ids.size(), 4u);
  Detokenizer stream(*tokenizer, true);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(stream.feed(ids[static_cast<size_t>(i)]).take(), "");
  EXPECT_EQ(stream.feed(ids[3]).take(), "\U0001F600");
  EXPECT_EQ(stream.feed(ids[0]).take(), "");
  EXPECT_EQ(stream.flush(), "\uFFFD");
}

TEST(Detokenizer, TakesNothingOfAFeedWithAnUnknownId) {
  const auto tokenizer = load(tiny());
  Detokenizer stream(*tokenizer, true);
  EXPECT_FALSE(stream.feed(Ids{1, 999}).ok());
  EXPECT_EQ(stream.feed(2).take(), " hello");
}

}  // namespace
}  // namespace atom::text
