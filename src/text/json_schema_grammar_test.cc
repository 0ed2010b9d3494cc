// Claims about grammars of JSON.
#include "text/json_schema_grammar.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "text/grammar_test_util.h"

namespace atom::text {
namespace {

GrammarPtr schema(std::string_view text) { return json_schema_grammar(Json::parse(text)).take(); }
std::string schema_error(std::string_view text) {
  const auto grammar = json_schema_grammar(Json::parse(text));
  return grammar.ok() ? "" : grammar.error().message();
}

TEST(JsonGrammar, ObjectsAreJson) {
  const GrammarPtr object = json_object_grammar().take();
  for (const char* text :
       {"{}", "{ }", "{\"a\": 1}", "{\"a\":[1,-2.5e+3,\"x\\n\\u00e9\",true,null,{\"b\":[]}]}",
        "{\n  \"a\": \"\xE4\xB8\xAD\",\n  \"b\": \"\\ud83d\\ude00\"\n}", "{\"a\":1,\n\"b\":[\n]}"}) {
    EXPECT_TRUE(matches(object, text)) << text;
    EXPECT_TRUE(Json::accept(text)) << text;
  }
  for (const char* text : {"", "[]", "{", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{a:1}", "{\"a\":01}",
                           "{\"a\":1.}", "{\"a\":\"\n\"}", "{\"a\":\"\\x\"}", "{\"a\":\"\\ud83d\"}", "{} ",
                           "{\"a\":\"\xFF\"}", "{\"a\":nul}"}) {
    EXPECT_FALSE(matches(object, text)) << text;
  }
}

TEST(JsonGrammar, RandomTextsAreJson) {
  const GrammarPtr object = json_object_grammar().take();
  int texts = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const std::string text = random_text(object, seed, 60, false);
    if (text.empty()) continue;
    ++texts;
    EXPECT_TRUE(Json::accept(text)) << text;
  }
  EXPECT_GT(texts, 5);
}

TEST(JsonSchema, AllowsWhatConforms) {
  struct Case {
    const char* schema;
    std::vector<const char*> yes, no;
  };
  const Case cases[] = {
      {R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"]})",
       {"{\"a\": 1}", "{\"a\":1,\"b\":\"x\"}", "{\n  \"a\": 1,\n  \"b\": \"x\"\n}"},
       {"{}", "{\"b\": \"x\"}", "{\"a\": 1.5}", "{\"a\": 1, \"c\": 2}", "{\"a\": 1, \"b\": 2}",
        "{\"a\": 1,}"}},
      {R"({"properties": {"a": {}, "b": {}, "c": {}}, "required": ["b"], "additionalProperties": false})",
       {"{\"b\": []}", "{\"a\": 1, \"b\": {\"x\": 2}}", "{\"a\":1,\"b\":2,\"c\":3}", "{\"b\":2,\"c\":3}"},
       {"{}", "{\"a\":1,\"c\":3}", "{\"b\":2,\"a\":3}", "{,\"b\":2}"}},
      {R"({"type": "object", "properties": {"ab": {"type": "integer"}}, "additionalProperties": {"type": "boolean"}})",
       {"{}", "{\"ab\": 1}", "{\"ab\": 1, \"x\": true}", "{\"a\": true, \"abc\": false}", "{\"\": true}"},
       {"{\"ab\": true}", "{\"x\": 1}", "{\"x\": true, \"ab\": 1}", "{\"a\\u0062\": true}"}},
      {R"({"type": "object"})", {"{}", "{\"x\": [1]}"}, {"[]"}},
      {R"({"type": "object", "required": ["k"]})",
       {"{\"k\": null}", "{\"k\": 1, \"z\": 2}"},
       {"{}", "{\"z\": 1}"}},
      {R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
       {"[1]", "[1, 2,3]", "[ 1 ]"},
       {"[]", "[1,2,3,4]", "[\"a\"]", "[1,]"}},
      {R"({"type": "array", "maxItems": 0})", {"[]"}, {"[1]"}},
      {R"({"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": false})",
       {"[\"a\", 1]"},
       {"[\"a\"]", "[\"a\",1,2]"}},
      {R"({"enum": ["a", 1, null, {"x": [1.5]}]})", {"\"a\"", "1", "null", "{\"x\":[1.5]}"}, {"\"b\"", "2"}},
      {R"({"const": "é\n\""})", {"\"é\\n\\\"\""}, {"\"é\""}},
      {R"({"type": ["integer", "null"]})", {"-12", "null", "0"}, {"1.0", "\"1\"", "-"}},
      {R"({"anyOf": [{"type": "string"}, {"type": "object", "properties": {"t": {"const": 1}}, "required": ["t"]}]})",
       {"\"x\"", "{\"t\": 1}"},
       {"{}", "1"}},
      {R"({"type": "string", "minLength": 2, "maxLength": 3})",
       {"\"ab\"", "\"a\\n\"", "\"\xE4\xB8\xAD\xE4\xB8\xAD\xE4\xB8\xAD\"", "\"\\u00e9b\""},
       {"\"a\"", "\"abcd\""}},
      {R"({"type": "string", "pattern": "^[a-z]+\"$"})", {"\"ab\\\"\""}, {"\"ab\"", "\"\\\"\"", "\"ab\"\""}},
      {R"({"type": "string", "pattern": "b{2}"})", {"\"bb\"", "\"abbc\""}, {"\"ab\""}},
      {R"({"type": "string", "format": "date"})", {"\"2024-02-30\""}, {"\"2024-13-01\"", "\"24-01-01\""}},
      {R"({"type": "string", "format": "date-time"})", {"\"2024-02-03T04:05:06.7Z\""}, {"\"2024-02-03\""}},
      {R"({"type": "string", "format": "ipv4"})", {"\"192.168.0.255\""}, {"\"256.1.1.1\""}},
      {R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"},
          "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["v", "next"]}}})",
       {"{\"v\": 1, \"next\": {\"v\": 2, \"next\": null}}"},
       {"{\"v\": 1}", "{\"v\": 1, \"next\": {}}"}},
      {"true", {"1", "[{}]"}, {"", "x"}},
      {R"({"allOf": [{"type": "boolean"}], "description": "d"})", {"true"}, {"1"}},
  };
  for (const Case& c : cases) {
    const GrammarPtr grammar = schema(c.schema);
    for (const char* text : c.yes) EXPECT_TRUE(matches(grammar, text)) << c.schema << "\n" << text;
    for (const char* text : c.no) EXPECT_FALSE(matches(grammar, text)) << c.schema << "\n" << text;
  }
}

TEST(JsonSchema, IntegersLieBetweenTheirBounds) {
  const std::pair<int, int> bounds[] = {{0, 9},    {1, 12}, {-3, 5}, {-120, -7},
                                        {99, 101}, {7, 7},  {-1, 0}, {5, 123}};
  for (const auto& [min, max] : bounds) {
    const GrammarPtr both =
        schema(fmt::format(R"({{"type": "integer", "minimum": {}, "maximum": {}}})", min, max));
    const GrammarPtr least = schema(fmt::format(R"({{"type": "integer", "exclusiveMinimum": {}}})", min));
    const GrammarPtr most = schema(fmt::format(R"({{"type": "integer", "maximum": {}}})", max));
    for (int n = -1300; n <= 1300; ++n) {
      const std::string text = std::to_string(n);
      ASSERT_EQ(matches(both, text), n >= min && n <= max) << text << " in " << min << " to " << max;
      ASSERT_EQ(matches(least, text), n > min) << text << " > " << min;
      ASSERT_EQ(matches(most, text), n <= max) << text << " <= " << max;
    }
    EXPECT_FALSE(matches(both, "01"));
  }
}

TEST(JsonSchema, NumbersLieBetweenTheirBounds) {
  const std::pair<int, int> bounds[] = {{0, 1}, {-1, 1}, {2, 11}, {-12, -3}, {0, 0}, {-5, 0}};
  for (const auto& [min, max] : bounds) {
    for (const bool open : {false, true}) {
      if (open && min == max) continue;
      const GrammarPtr grammar = schema(fmt::format(R"({{"type": "number", "{}": {}, "{}": {}}})",
                                                    open ? "exclusiveMinimum" : "minimum", min,
                                                    open ? "exclusiveMaximum" : "maximum", max));
      for (int n = -1400; n <= 1400; n += 5) {
        const double value = n / 100.0;
        const std::string text = fmt::format("{:.2f}", value);
        if (text == "-0.00") continue;
        const bool within = open ? value > min && value < max : value >= min && value <= max;
        ASSERT_EQ(matches(grammar, text), within)
            << text << " in " << min << " to " << max << " open " << open;
      }
    }
  }
}

TEST(JsonSchema, RandomTextsConform) {
  const GrammarPtr grammar =
      schema(R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 5},
    "tags": {"type": "array", "items": {"enum": ["a", "abc"]}, "minItems": 2, "maxItems": 3}, "n": {"type": "number"}},
    "required": ["name", "tags"]})");
  int texts = 0;
  for (uint32_t seed = 0; seed < 40; ++seed) {
    const std::string text = random_text(grammar, seed, 300, seed < 2);
    if (text.empty()) continue;
    ++texts;
    ASSERT_TRUE(Json::accept(text)) << text;
    const Json value = Json::parse(text);
    EXPECT_TRUE(value["name"].is_string()) << text;
    EXPECT_TRUE(value["tags"].size() == 2 || value["tags"].size() == 3) << text;
  }
  EXPECT_GT(texts, 10);
}

TEST(JsonSchema, RefusesByNameAndPlace) {
  EXPECT_EQ(schema_error(R"({"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 3}}})"),
            "schema: #/properties/a: \"multipleOf\" is not supported");
  for (const char* key : {"patternProperties", "not", "if", "dependentRequired", "contains", "minProperties",
                          "propertyNames", "unevaluatedProperties", "contentEncoding", "foo"}) {
    const std::string message = schema_error(Json{{"type", "object"}, {key, 1}}.dump());
    EXPECT_NE(message.find(key), std::string::npos) << key << ": " << message;
  }
  for (const char* text : {"false",
                           "1",
                           R"({"type": "thing"})",
                           R"({"type": 1})",
                           R"({"type": []})",
                           R"({"enum": []})",
                           R"({"anyOf": 1})",
                           R"({"anyOf": [{"type": "string"}], "type": "string"})",
                           R"({"$ref": "other.json"})",
                           R"({"$ref": "#/$defs/x"})",
                           R"({"$ref": 1})",
                           R"({"type": "string", "format": "hostname"})",
                           R"({"type": "string", "pattern": "("})",
                           R"({"type": "string", "minLength": 2, "pattern": "a"})",
                           R"({"type": "string", "minLength": -1})",
                           R"({"type": "array", "minItems": 3, "maxItems": 2})",
                           R"({"type": "integer", "minimum": 2, "maximum": 1})",
                           R"({"type": "number", "minimum": 0.5})",
                           R"({"type": "integer", "minimum": "1"})",
                           R"({"type": "object", "properties": 1})",
                           R"({"type": "object", "required": [1]})",
                           R"({"type": "object", "properties": {}, "required": ["a"]})",
                           R"({"const": 1, "type": "string"})",
                           R"({"allOf": [{}, {}]})",
                           R"({"uniqueItems": true})",
                           R"({"type": "string", "maxLength": 1e9})"}) {
    EXPECT_NE(schema_error(text), "") << text;
  }
  // A schema that refers to nothing but itself.
  EXPECT_NE(schema_error(R"({"$ref": "#"})"), "");
  EXPECT_NE(schema_error(R"({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})"), "");
}

TEST(JsonSchema, HostileSchemasAreRefusedSoon) {
  Json deep = Json::object();
  for (int i = 0; i < 100; ++i) deep = {{"type", "array"}, {"items", deep}};
  EXPECT_FALSE(json_schema_grammar(deep).ok());
  Json wide = {{"type", "object"}};
  for (int i = 0; i < 25000; ++i) wide["properties"]["p" + std::to_string(i)] = {{"type", "string"}};
  EXPECT_FALSE(json_schema_grammar(wide).ok());
  const Json string = {{"type", "string"}, {"maxLength", 100000}};
  Json object = {{"type", "object"}};
  for (const char* name : {"a", "b", "c", "d", "e"}) object["properties"][name] = string;
  EXPECT_FALSE(json_schema_grammar(object).ok());
}

TEST(JsonSchema, ManyPropertiesAreFine) {
  Json many = {{"type", "object"}};
  std::string text = "{";
  for (int i = 0; i < 150; ++i) {
    many["properties"]["property_" + std::to_string(i)] = {{"type", "integer"}};
    text += (i == 0 ? "" : ", ") + fmt::format("\"property_{}\": {}", i, i);
  }
  const GrammarPtr grammar = json_schema_grammar(many).take();
  EXPECT_TRUE(matches(grammar, text + "}"));
  EXPECT_TRUE(matches(grammar, "{\"property_7\": 1, \"property_149\": 2}"));
  EXPECT_FALSE(matches(grammar, "{\"property_9\": 1, \"property_8\": 2}"));
}

}  // namespace
}  // namespace atom::text
