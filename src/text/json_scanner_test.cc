// Claims about the JSON scanner.
#include "text/json_scanner.h"

#include <gtest/gtest.h>

namespace atom::text {
namespace {

TEST(JsonScanner, AcceptsJsonAndNothingElse) {
  for (const char* text : {"{}", "[]", " { \"a\" : [ 1 , -0.5e+10 , true , null , \"\\u00e9\\n\" ] } ", "0",
                           "-1", "1e5", "\"\"", "[[],{}]", "1.0E-2 "}) {
    EXPECT_TRUE(is_json(text)) << text;
    EXPECT_TRUE(Json::accept(text)) << text;
  }
  for (const char* text :
       {"",   " ",  "{",  "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "[1,]",  "[,]",     "01",
        "1.", ".5", "+1", "-",       "1e",       "tru",        "truee", "\"\\x\"", "\"\\u12g4\"",
        "\"", "{]", "[}", "{1:2}",   "1 2",      "\"a\nb\"",   "{}}"}) {
    EXPECT_FALSE(is_json(text)) << text;
    EXPECT_FALSE(Json::accept(text)) << text;
  }
}

TEST(JsonScanner, DepthIsBounded) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_TRUE(is_json(nested(kMaxJsonDepth)));
  EXPECT_FALSE(is_json(nested(kMaxJsonDepth + 1)));
}

TEST(JsonScanner, SaysWhereAValueEnds) {
  using Status = JsonScanner::Status;
  JsonScanner object;
  EXPECT_EQ(object.feed('{'), Status::more);
  EXPECT_EQ(object.feed('}'), Status::done);
  EXPECT_EQ(object.feed('}'), Status::past_end);
  JsonScanner number;
  EXPECT_EQ(number.feed('1'), Status::more);
  EXPECT_TRUE(number.complete());
  EXPECT_EQ(number.feed(','), Status::past_end);
}

TEST(ArgumentStream, EscapesRawControlCharacters) {
  ArgumentStream stream;
  std::string out;
  for (const char c : std::string_view("  {\"a\": \"x\n\x01y\"}")) stream.feed(c, out);
  EXPECT_EQ(out, "{\"a\": \"x\\n\\u0001y\"}");
  EXPECT_TRUE(stream.complete());
}

}  // namespace
}  // namespace atom::text
