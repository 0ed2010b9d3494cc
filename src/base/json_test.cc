#include "base/json.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace atom {
namespace {

std::string error_of(const std::string& text) {
  try {
    parse_json(text, "f.json");
    return "";
  } catch (const Error& e) {
    return e.message();
  }
}

TEST(Json, ErrorsNameTheFileAndTheByte) {
  EXPECT_NE(error_of("{\"a\": Infinity}").find("f.json: not valid JSON at byte 7"), std::string::npos);
  EXPECT_NE(error_of("{\"a\": 1e999}").find("f.json: not valid JSON"), std::string::npos);
  EXPECT_NE(error_of("").find("f.json"), std::string::npos);
}

TEST(Json, DepthIsBounded) {
  EXPECT_NE(error_of(std::string(100000, '[')).find("deeper"), std::string::npos);
  EXPECT_EQ(error_of(std::string(100, '[') + std::string(100, ']')), "");
}

TEST(Json, KeepsKeyOrderAndKindsOfNumbers) {
  EXPECT_EQ(parse_json(R"({"b": 1, "a": 1.0})", "f").dump(), R"({"b":1,"a":1.0})");
}

}  // namespace
}  // namespace atom
