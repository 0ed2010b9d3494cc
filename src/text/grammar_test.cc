// Claims about grammars, masks, regular expressions and EBNF.
#include "text/grammar.h"

#include <gtest/gtest.h>

#include <climits>
#include <cstdlib>
#include <ctime>

#include "text/ebnf_grammar.h"
#include "text/grammar_test_util.h"
#include "text/json_schema_grammar.h"
#include "text/regex_grammar.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace atom::text {
namespace {

GrammarPtr ebnf(std::string_view source) { return ebnf_grammar(source).take(); }
GrammarPtr regex(std::string_view pattern) { return regex_grammar(pattern).take(); }
std::string ebnf_error(std::string_view source) { return ebnf_grammar(source).error().message(); }
std::string regex_error(std::string_view pattern) { return regex_grammar(pattern).error().message(); }

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

TEST(Regex, MatchesWholeTexts) {
  struct Case {
    const char* pattern;
    std::vector<const char*> yes, no;
  };
  const Case cases[] = {
      {"abc", {"abc"}, {"", "ab", "abcd"}},
      {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
      {"^a+$", {"a", "aaa"}, {"", "b"}},
      {"(ab){2,3}c?", {"abab", "ababab", "ababc"}, {"ab", "abababab", "ababcc"}},
      {"[a-cx]+[^0-9]", {"ab", "x!", "aé"}, {"a", "a1", "dd"}},
      {"\\d{3}-\\w+\\s", {"123-a_9 ", "000-Z\n"}, {"12-a ", "123-é "}},
      {"a{2}b{1,}?", {"aab", "aabbb"}, {"ab", "aa"}},
      {"[^\\n]*", {"", "\xE4\xB8\xAD\xF0\x9F\x98\x80"}, {"a\n", "\xE4\xB8", "\xFF"}},
      {"\\u00e9\\x41\\u{1F600}\\.", {"éA\xF0\x9F\x98\x80."}, {"eA"}},
      {"(?:a|(?<n>b))[\\]\\-]", {"a]", "b-"}, {"a\\"}},
      {".", {"a", "é"}, {"\n", ""}},
  };
  for (const Case& c : cases) {
    const GrammarPtr grammar = regex(c.pattern);
    for (const char* text : c.yes) EXPECT_TRUE(matches(grammar, text)) << c.pattern << " " << text;
    for (const char* text : c.no) EXPECT_FALSE(matches(grammar, text)) << c.pattern << " " << text;
  }
}

TEST(Regex, RefusesByName) {
  EXPECT_NE(regex_error("a(?=b)").find("look-around"), std::string::npos);
  EXPECT_NE(regex_error("(a)\\1").find("byte 5: this escape"), std::string::npos);
  for (const char* pattern : {"(", ")", "a)", "[a", "[b-a]", "a{2,1}", "a{", "*a", "a**", "\\", "a\\b", "x^",
                              "$x", "a{999999999}", "\\xZ", "\\ud800", "[[:alpha:]]", "\xFF"}) {
    EXPECT_FALSE(regex_grammar(pattern).ok()) << pattern;
  }
  EXPECT_FALSE(regex_grammar(std::string(100000, '(')).ok());
}

TEST(Grammar, CharactersAreTheirUtf8) {
  const CodePoints ranges = {{'a', 'c'}, {0x7E, 0x81}, {0x7FE, 0x1003}, {0xD000, 0xE001}, {0xFFFE, 0x10FFFF}};
  GrammarBuilder builder;
  const GrammarPtr grammar = builder.compile(builder.rule("root", builder.code_points(ranges))).take();
  GrammarMatcher matcher = matcher_of(grammar);
  for (char32_t c = 0; c <= 0x10FFFF; c += c < 0x11000 ? 1 : 97) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    bool within = false;
    for (const auto& [first, last] : ranges) within = within || (c >= first && c <= last);
    std::string text;
    append_utf8(c, text);
    const bool accepted = matcher.accept(text);
    ASSERT_EQ(accepted && matcher.can_end(), within) << static_cast<uint32_t>(c);
    if (accepted) matcher.rollback(static_cast<int64_t>(text.size()));
  }
}

TEST(Ebnf, RulesMayCallEachOther) {
  const GrammarPtr sums = ebnf(R"gbnf(
    # sums in parentheses
    root  ::= term ("+" term)*
    term  ::= number | "(" root ")"   // recursion
    number ::= [1-9] [0-9]{0,3} | "0"
  )gbnf");
  EXPECT_TRUE(matches(sums, "1+(20+(3))+0"));
  EXPECT_FALSE(matches(sums, "1+(20+(3)+0"));
  EXPECT_FALSE(matches(sums, "01"));
  EXPECT_FALSE(matches(sums, "12345"));
  const GrammarPtr lark = ebnf("start: greeting NAME?\ngreeting: \"hi \" | \"yo\\n\"\nNAME: /[a-z]{2,}/\n");
  EXPECT_TRUE(matches(lark, "hi bob"));
  EXPECT_TRUE(matches(lark, "yo\n"));
  EXPECT_FALSE(matches(lark, "hi b"));
}

TEST(Ebnf, EmptyRulesAndAmbiguityAreFine) {
  const GrammarPtr grammar = ebnf("root ::= a b a\na ::= \"x\"*\nb ::= \"\" | a \"y\"");
  for (const char* text : {"", "x", "xxx", "xyx", "y", "xxyxx"}) EXPECT_TRUE(matches(grammar, text)) << text;
  EXPECT_FALSE(matches(grammar, "yy"));
  const GrammarPtr nested = ebnf("root ::= \"(\" root \")\" root | \"\"");
  EXPECT_TRUE(matches(nested, "(())()"));
  EXPECT_FALSE(matches(nested, "(()"));
}

TEST(Ebnf, RefusesByName) {
  EXPECT_NE(ebnf_error("root ::= missing").find("\"missing\" is not defined"), std::string::npos);
  EXPECT_NE(ebnf_error("root ::= root \"a\" | \"b\"").find("left-recursive"), std::string::npos);
  EXPECT_NE(ebnf_error("root ::= a root \"b\" | \"c\"\na ::= \"x\"?").find("left-recursive"),
            std::string::npos);
  EXPECT_NE(ebnf_error("root ::= \"a\" root").find("no text matches"), std::string::npos);
  EXPECT_NE(ebnf_error("root ::= \"a\"\nroot ::= \"b\"").find("line 2: rule \"root\" is defined twice"),
            std::string::npos);
  EXPECT_NE(ebnf_error("start: a\n%import common.WS").find("directives"), std::string::npos);
  EXPECT_NE(ebnf_error("start: \"a\" -> b").find("aliases"), std::string::npos);
  for (const char* source :
       {"", "x ::= \"a\"", "root ::= \"a", "root ::= (\"a\"", "root ::= \"a\")", "root ::= [a", "root \"a\"",
        "root ::= \"\\q\"", "root ::= \"a\"{3,2}", "root ::= \xFF", "root ::= *"}) {
    EXPECT_FALSE(ebnf_grammar(source).ok()) << source;
  }
}

TEST(Grammar, HostileSizesAreRefusedSoon) {
  const double begin = cpu_seconds();
  EXPECT_FALSE(regex_grammar("((((a{1000}){1000}){1000}){1000}){1000}").ok());
  EXPECT_FALSE(regex_grammar("(a|b)*a(a|b){30}").ok());
  (void)regex_grammar("(.*){50}(.*a.*){500}x{1000}").ok();  // large, but it may fit
  EXPECT_FALSE(ebnf_grammar("root ::= " + std::string(100000, '(')).ok());
  std::string chain = "root ::= r0\n";
  for (int i = 0; i < 3000; ++i) chain += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + "\n";
  EXPECT_NE(ebnf_error(chain + "r3000 ::= \"x\"").find("begin with each other"), std::string::npos);
  std::string fan = "root ::= r0 \"z\"\n";
  for (int i = 0; i < 60; ++i) {
    const std::string next = "r" + std::to_string(i + 1);
    fan += "r" + std::to_string(i) + " ::= " + next + " \"b\" | " + next + " \"c\" | \"a\" " + next + "\n";
  }
  const Result<GrammarPtr> ambiguous = ebnf_grammar(fan + "r60 ::= \"a\"");
  if (ambiguous.ok()) {
    GrammarMatcher matcher = matcher_of(ambiguous.value());
    matcher.accept("aaaaaaaaaaaaaaaaaaaaaaaa");
    std::vector<uint32_t> mask(64);
    matcher.mask(mask);
  }
  EXPECT_LT(cpu_seconds() - begin, 10.0);
}

// The place of the error is where the source was left.
TEST(Grammar, SourcesAreReadOnlyUpToWhereTheGrammarIsTooLarge) {
  const auto repeated = [](std::string_view part, int times) {
    std::string text;
    for (int i = 0; i < times; ++i) text += part;
    return text;
  };
  const auto place = [](const std::string& message, const std::string& before) {
    const size_t at = message.find(before);
    EXPECT_NE(at, std::string::npos) << message;
    EXPECT_NE(message.find("too large from here on"), std::string::npos) << message;
    return at == std::string::npos ? INT_MAX : std::atoi(message.c_str() + at + before.size());
  };
  const std::string classes = repeated("\\W", 50'000);
  EXPECT_LT(place(regex_error(classes), "byte "), 20'000);
  EXPECT_LT(place(ebnf_error("root ::= " + repeated("[^0-9]\n", 50'000)), "line "), 20'000);
  EXPECT_LT(place(ebnf_error("root ::= " + repeated(".\n", 50'000)), "line "), 20'000);
  EXPECT_NE(regex_error(std::string(2 << 20, 'a')).find("longer than"), std::string::npos);
  Json schema = {{"type", "object"}, {"properties", Json::object()}};
  for (int i = 0; i < 40; ++i) {
    schema["properties"]["p" + std::to_string(i)] = {{"type", "string"}, {"pattern", repeated("\\W", 200)}};
  }
  const std::string message = json_schema_grammar(schema).error().message();
  EXPECT_LT(place(message, "/properties/p"), 20);
}

// Many parts below a long name: places do not repeat it.
TEST(Grammar, LongNamesOfASchemaCostNoMoreThanThemselves) {
  const std::string name(50'000, 'n');
  Json parts = Json::array();
  for (int i = 0; i < 100'000; ++i) parts.push_back(true);
  const Json schema = {{"type", "object"}, {"properties", {{name, {{"anyOf", parts}}}}}};
  const double begin = cpu_seconds();
  (void)json_schema_grammar(schema).ok();
  Json types = Json::array(), values = Json::array();
  for (int i = 0; i < 20'000; ++i) types.push_back("string"), values.push_back("a");
  EXPECT_FALSE(json_schema_grammar({{"type", types}, {"enum", values}}).ok());
  EXPECT_LT(cpu_seconds() - begin, 2.0);
}

TEST(GrammarMatcher, MasksAllowExactlyWhatIsAccepted) {
  const GrammarPtr grammars[] = {
      json_object_grammar().take(),
      ebnf("root ::= \"[\" (item (\",\" item)*)? \"]\"\nitem ::= root | [0-9]+ | \"\\\"\" [^\"]* \"\\\"\""),
      regex("(a|ab|abc)*[0-9]{2,4}(true|tru|e)?"),
  };
  for (const GrammarPtr& grammar : grammars) {
    for (uint32_t seed = 0; seed < 6; ++seed) random_text(grammar, seed, 40, true);
  }
}

TEST(GrammarMatcher, RollbackReturnsToWhereItWas) {
  GrammarMatcher matcher = matcher_of(json_object_grammar().take());
  ASSERT_TRUE(matcher.accept("{\"a\": [1, "));
  std::vector<uint32_t> before(64), after(64);
  matcher.mask(before);
  ASSERT_TRUE(matcher.accept("{\"b\": true}]}"));
  EXPECT_TRUE(matcher.must_end());
  matcher.rollback(13);
  matcher.mask(after);
  EXPECT_EQ(before, after);
  EXPECT_EQ(matcher.size(), 10);
  EXPECT_FALSE(matcher.accept("]"));
  EXPECT_FALSE(matcher.accept("2]} "));  // refused as a whole
  EXPECT_EQ(matcher.size(), 10);
  EXPECT_TRUE(matcher.accept("2]}"));
}

TEST(GrammarMatcher, LongTextsTakeBoundedMemory) {
  GrammarMatcher matcher = matcher_of(json_object_grammar().take());
  ASSERT_TRUE(matcher.accept("{\"a\": ["));
  for (int i = 0; i < 8000; ++i) ASSERT_TRUE(matcher.accept("[{\"k\": \"vvvv\"}, 1.5],"));
  std::string deep;
  for (int i = 0; i < 10000; ++i) deep += "[{\"k\":";
  ASSERT_TRUE(matcher.accept(deep));
  matcher.rollback(GrammarMatcher::kMaxRollback);
  EXPECT_TRUE(matcher.accept(std::string_view(deep).substr(deep.size() - GrammarMatcher::kMaxRollback)));
  EXPECT_FALSE(matcher.accept("]"));
}

// Each level of the recursion has two ways to end.
TEST(GrammarMatcher, RecursionThatForksAtEveryLevelIsFollowed) {
  const auto way = [](const char* name) {
    return fmt::format(R"({{"type": "object", "required": ["a", "k"], "properties": {{"a": {{"anyOf":
      [{{"$ref": "#/$defs/n"}}, {{"type": "null"}}]}}, "k": {{"const": "{}"}}}}}})",
                       name);
  };
  const Json schema = Json::parse(
      fmt::format(R"({{"$ref": "#/$defs/n", "$defs": {{"n": {{"anyOf": [{}, {}]}}}}}})", way("x"), way("y")));
  GrammarMatcher matcher = matcher_of(json_schema_grammar(schema).take());
  constexpr int kLevels = 300;
  for (int i = 0; i < kLevels; ++i) ASSERT_TRUE(matcher.accept("{\"a\":")) << i;
  expect_exact_mask(matcher, test_tokens());
  ASSERT_TRUE(matcher.accept("null"));
  for (int i = 0; i < kLevels; ++i)
    ASSERT_TRUE(matcher.accept(i % 3 == 0 ? ",\"k\":\"x\"}" : ",\"k\":\"y\"}")) << i;
  EXPECT_TRUE(matcher.must_end());
  // And one by one, where each level may end without more.
  EXPECT_TRUE(matches(ebnf("root ::= \"-\" root \"!\"? | \"-\" root \"?\"? | \"x\""),
                      std::string(300, '-') + "x" + std::string(100, '?') + std::string(200, '!')));
}

TEST(GrammarMatcher, TooManyReadingsRefuseATokenAndNothingElse) {
  const std::vector<std::string_view> tokens = {"x", "Q", "xQ", "xz", "y", "z", "1"};
  const auto masks =
      std::make_shared<GrammarMasks>(ebnf(too_ambiguous()), std::make_shared<TokenTrie>(tokens));
  for (int round = 0; round < 2; ++round) {
    GrammarMatcher matcher(masks);
    std::vector<uint32_t> mask(1);
    matcher.mask(mask);
    EXPECT_EQ(mask[0], 0b0011001u);
    EXPECT_FALSE(matcher.accept("xQ"));
    EXPECT_TRUE(matcher.failed());
    EXPECT_FALSE(matcher.accept("z"));
    EXPECT_FALSE(matcher.failed());
    ASSERT_TRUE(matcher.accept("x"));
    matcher.mask(mask);
    EXPECT_EQ(mask[0], 0b0100010u);
    EXPECT_FALSE(matcher.accept("Q"));
    EXPECT_TRUE(matcher.failed());
    EXPECT_TRUE(matcher.accept("z"));
    EXPECT_TRUE(matcher.must_end());
  }
}

TEST(TokenTrie, DoubledTokensAreBothAllowed) {
  const std::vector<std::string_view> tokens = {"b", "a", "", "ab", "a", "abc", "b"};
  GrammarMatcher matcher(std::make_shared<GrammarMasks>(regex("ab|b"), std::make_shared<TokenTrie>(tokens)));
  std::vector<uint32_t> mask(1);
  matcher.mask(mask);
  EXPECT_EQ(mask[0], 0b1011011u);
}

// With a real vocabulary: exact at sampled places, and how long a mask takes.
TEST(GrammarMatcher, MasksOfRealVocabulariesAreExact) {
  const char* folder = std::getenv("ATOM_TOKENIZERS");
  if (folder == nullptr) GTEST_SKIP() << "ATOM_TOKENIZERS is not set";
  const auto tokenizer = Tokenizer::from_file(std::string(folder) + "/qwen3/tokenizer.json");
  std::vector<std::string_view> tokens;
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    tokens.push_back(tokenizer->is_special(id) ? std::string_view() : tokenizer->token_bytes(id));
  }
  double begin = cpu_seconds();
  const auto trie = std::make_shared<TokenTrie>(*tokenizer);
  const double trie_seconds = cpu_seconds() - begin;
  const Json schema = Json::parse(R"({"type": "object", "properties": {"name": {"type": "string"},
    "age": {"type": "integer", "minimum": 0, "maximum": 150}, "tags": {"type": "array", "items": {"type": "string"}},
    "kind": {"enum": ["cat", "dog"]}, "note": {"anyOf": [{"type": "string"}, {"type": "null"}]}},
    "required": ["name", "age", "tags", "kind"]})");
  begin = cpu_seconds();
  const GrammarPtr grammar = json_schema_grammar(schema).take();
  const double compile_seconds = cpu_seconds() - begin;
  const auto masks = std::make_shared<GrammarMasks>(grammar, trie);
  const std::string text =
      "{\"name\": \"Zoë \\\"Z\\\" \xE4\xB8\xAD\", \"age\": 42, \"tags\": [\"a\", \"b c\"],\n  \"kind\": "
      "\"dog\", \"note\": null}";
  std::vector<uint32_t> mask((tokens.size() + 31) / 32);
  for (const int round : {0, 1}) {
    GrammarMatcher matcher(masks);
    double worst = 0;
    begin = cpu_seconds();
    for (const char& c : text) {
      const double before = cpu_seconds();
      matcher.mask(mask);
      worst = std::max(worst, cpu_seconds() - before);
      ASSERT_TRUE(matcher.accept({&c, 1})) << text.substr(0, static_cast<size_t>(&c - text.data()));
    }
    const double mean = (cpu_seconds() - begin) / static_cast<double>(text.size());
    std::printf("  round %d: mask mean %.1f us, worst %.1f us; compile %.1f ms, %lld states; trie %.0f ms\n",
                round, mean * 1e6, worst * 1e6, compile_seconds * 1e3,
                static_cast<long long>(grammar->state_count()), trie_seconds * 1e3);
    if (round == 0) continue;
    EXPECT_LT(mean, 0.005);  // far more than it takes, for instrumented builds
  }
  for (const std::string_view prefix :
       {"", "{\"na", "{\"name\": \"Zo\xC3", "{\"name\": \"\\u0", "{\"name\": \"x\", \"age\": 1"}) {
    GrammarMatcher matcher(masks);
    ASSERT_TRUE(matcher.accept(prefix));
    expect_exact_mask(matcher, tokens);
  }
}

}  // namespace
}  // namespace atom::text
