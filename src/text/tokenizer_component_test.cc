// Tests of pre-tokenizers, normalizers and decoders against values from the `tokenizers` package
// (tests/data/tokenizer/generate.py), and of the errors they give.
#include "text/tokenizer_component.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "text/bpe_bytes.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"

namespace atom::text {
namespace {

const Json& expected() {
  static const Json json = read_json_file(ATOM_TEST_DATA "/data/tokenizer/components.json");
  return json;
}

TEST(PreTokenizer, CutsAsTheTokenizersPackage) {
  RegexScratch scratch;
  for (const Json& entry : expected()["pre_tokenizer"]) {
    const PreTokenizer pre_tokenizer(Component(entry["config"], "test"));
    for (const Json& test : entry["cases"]) {
      auto text = test[0].get<std::string>();
      std::vector<Piece> pieces;
      pre_tokenizer.apply(text, true, pieces, scratch);
      Json got = Json::array();
      for (const Piece piece : pieces) {
        const std::string_view word = std::string_view(text).substr(piece.begin, piece.end - piece.begin);
        std::string shown;
        if (pre_tokenizer.gives_bytes()) {
          append_byte_chars(word, shown);
        } else {
          shown = word;
        }
        got.push_back(shown);
      }
      EXPECT_EQ(got, test[1]) << entry["config"] << " " << test[0];
    }
  }
}

TEST(PreTokenizer, PutsTheMarkInFrontOnlyWhereTheTextOpens) {
  const Json config = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}};
  const PreTokenizer pre_tokenizer(Component(config, "test"));
  RegexScratch scratch;
  std::vector<Piece> pieces;
  std::string opening = "a", later = "a";
  pre_tokenizer.apply(opening, true, pieces, scratch);
  pre_tokenizer.apply(later, false, pieces, scratch);
  EXPECT_EQ(opening, "\u2581a");
  EXPECT_EQ(later, "a");
}

TEST(PreTokenizer, UnderstandsTheOldMetaspace) {
  const Json config = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"add_prefix_space", false}};
  RegexScratch scratch;
  std::vector<Piece> pieces;
  std::string text = "a b";
  PreTokenizer(Component(config, "test")).apply(text, true, pieces, scratch);
  EXPECT_EQ(text, "a\u2581b");
}

TEST(Normalizer, EditsAsTheTokenizersPackage) {
  RegexScratch scratch;
  for (const Json& entry : expected()["normalizer"]) {
    const Normalizer normalizer(Component(entry["config"], "test"));
    for (const Json& test : entry["cases"]) {
      auto text = test[0].get<std::string>();
      normalizer.apply(text, scratch);
      EXPECT_EQ(text, test[1].get<std::string>()) << entry["config"] << " " << test[0];
    }
  }
}

TEST(Normalizer, RefusesATextThatExplodes) {
  const Json step = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(1000, 'a')}};
  const Json config = {{"type", "Sequence"}, {"normalizers", {step, step, step}}};
  const Normalizer normalizer(Component(config, "test"));
  RegexScratch scratch;
  std::string text = "aaaa";
  EXPECT_THROW(normalizer.apply(text, scratch), Error);
}

TEST(Decoder, DecodesAsTheTokenizersPackage) {
  Json root = {{"model", {{"type", "BPE"}, {"vocab", Json::object()}, {"merges", Json::array()}}}};
  Json& vocab = root["model"]["vocab"];
  for (const Json& entry : expected()["decoder"]) {
    for (const Json& test : entry["cases"]) {
      for (const Json& token : test[0]) {
        if (!vocab.contains(token.get<std::string>())) vocab[token.get<std::string>()] = vocab.size();
      }
    }
  }
  for (const Json& entry : expected()["decoder"]) {
    root["decoder"] = entry["config"];
    const auto tokenizer = Tokenizer::from_json(root.dump(), "test");
    for (const Json& test : entry["cases"]) {
      std::vector<int32_t> ids;
      for (const Json& token : test[0]) ids.push_back(*tokenizer->token_to_id(token.get<std::string>()));
      EXPECT_EQ(tokenizer->decode(ids, false).take(), test[1].get<std::string>())
          << entry["config"] << " " << test[0];
    }
  }
}

// The message of the Error that loading a tokenizer with this component gives.
std::string refusal(const char* key, const char* component) {
  const Json root = {{key, parse_json(component, "test")},
                     {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}}}, {"merges", Json::array()}}}};
  try {
    Tokenizer::from_json(root.dump(), "t.json");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::invalid);
    return e.message();
  }
  return "";
}

TEST(Component, ErrorsNameTheJsonPath) {
  EXPECT_TRUE(
      refusal("pre_tokenizer",
              R"({"type":"Sequence","pretokenizers":[{"type":"Whitespace"},{"type":"Foo"}]})")
          .starts_with(
              "t.json: pre_tokenizer.pretokenizers[1].type: \"Foo\" is not supported; known types: "));
  EXPECT_TRUE(refusal("normalizer", R"({"type":"Bert"})").starts_with("t.json: normalizer.type: \"Bert\""));
  EXPECT_TRUE(refusal("decoder", R"({"type":"Sequence","decoders":[{"type":"CTC"}]})")
                  .starts_with("t.json: decoder.decoders[0].type: \"CTC\""));
  EXPECT_TRUE(refusal("post_processor", R"({"type":"RobertaProcessing"})")
                  .starts_with("t.json: post_processor.type: "));
  EXPECT_EQ(refusal("normalizer", R"({"type":"Prepend"})"), "t.json: normalizer: \"prepend\" is missing");
  EXPECT_EQ(refusal("normalizer", "[]"), "t.json: normalizer: expected an object, found array");
  EXPECT_EQ(refusal("normalizer", R"({"type":"Strip","strip_left":1})"),
            "t.json: normalizer.strip_left: expected true or false, found number");
  EXPECT_TRUE(refusal("pre_tokenizer", R"({"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"})")
                  .starts_with("t.json: pre_tokenizer.pattern: "));
  EXPECT_TRUE(refusal("pre_tokenizer", R"({"type":"Split","pattern":{"String":"a"},"behavior":"Odd"})")
                  .starts_with("t.json: pre_tokenizer.behavior: "));
  EXPECT_TRUE(refusal("decoder", R"({"type":"Sequence","decoders":[{"type":"Fuse"},)"
                                 R"({"type":"Replace","pattern":{"String":"a"},"content":"b"}]})")
                  .starts_with("t.json: decoder.decoders[1]: "));
  EXPECT_TRUE(refusal("post_processor", R"({"type":"TemplateProcessing","single":[{"Sequence":{"id":"A"}},)"
                                        R"({"SpecialToken":{"id":"</s>"}}],"special_tokens":{}})")
                  .starts_with("t.json: post_processor.special_tokens: \"</s>\" is missing"));
  EXPECT_TRUE(refusal("added_tokens", R"([{"id":0,"content":"a"},{"id":-1,"content":"b"}])")
                  .starts_with("t.json: added_tokens[1].id: -1"));
}

}  // namespace
}  // namespace atom::text
