// Request bodies: what is no plain JSON object is refused, and so is every key that nobody reads.
#include "server/fields.h"

#include <gtest/gtest.h>

namespace atom::server {
namespace {

std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400);
    return error.message;
  }
  return "";
}

TEST(Body, RefusesWhatIsNoSingleObject) {
  for (const char* text : {"", "{", "[]", "1", "{} {}", "{\"a\":1e999}", "{\"a\":NaN}", "{\"a\":\"\xff\"}",
                           "{\"a\":\"\\u0000\"}", "{\"a\":1,\"a\":1}", "{\"b\":[{\"a\":1,\"a\":2}]}"}) {
    EXPECT_NE(refusal([&] { parse_body(text); }), "") << text;
  }
  EXPECT_NE(refusal([] { parse_body(std::string(1 << 20, '[')); }), "");
  std::string many = "{\"a\":[";
  for (int i = 0; i < 1'000'001; ++i) many += "1,";
  EXPECT_NE(refusal([&] { parse_body(many + "1]}"); }), "");
  EXPECT_EQ(parse_body("{\"b\":{\"a\":1},\"a\":{\"a\":1}}")["b"]["a"], 1);
}

TEST(Body, ErrorsAreWellFormedWhateverTheBodyIs) {
  for (int c = 0; c < 256; ++c) {
    const std::string text = std::string("{\"") + static_cast<char>(c) + "\":\xff";
    const std::string message = refusal([&] { parse_body(text); });
    EXPECT_NO_THROW(Json(message).dump()) << c;
  }
}

TEST(Fields, TypesAndRangesAreChecked) {
  const Json body =
      Json::parse(R"({"i":5,"f":1.5,"big":18446744073709551615,"s":"x","b":true,"n":null,"neg":-1})");
  Fields fields(body);
  EXPECT_EQ(fields.integer("i", 0, 5), 5);
  EXPECT_NE(refusal([&] { (void)fields.integer("i", 0, 4); }), "");
  EXPECT_NE(refusal([&] { (void)fields.integer("f", 0, 4); }), "");
  EXPECT_NE(refusal([&] { (void)fields.integer("big", 0, INT64_MAX - 1); }), "");
  EXPECT_NE(refusal([&] { (void)fields.integer("s", 0, 4); }), "");
  EXPECT_NE(refusal([&] { (void)fields.integer("b", 0, 4); }), "");
  EXPECT_NE(refusal([&] { (void)fields.integer("neg", 0, 4); }), "");
  EXPECT_EQ(fields.integer("n", 0, 4), std::nullopt);
  EXPECT_EQ(fields.integer("absent", 0, 4), std::nullopt);
  EXPECT_EQ(fields.number("i", 0, 10), 5.0);
  EXPECT_NE(refusal([&] { (void)fields.number("b", 0, 4); }), "");
  EXPECT_NE(refusal([&] { (void)fields.boolean("i"); }), "");
  EXPECT_NE(refusal([&] { (void)fields.text("i"); }), "");
  EXPECT_NE(refusal([&] { (void)fields.required_text("absent"); }), "");
}

TEST(Fields, AKeyThatNobodyReadIsNamedWithItsPlace) {
  const Json body = {{"known", 1}, {"harmless", 2}, {"null", nullptr}, {"inner", {{"unknown", 3}}}};
  Fields fields(body);
  (void)fields.integer("known", 0, 9);
  fields.harmless({"harmless", "absent"});
  EXPECT_NE(refusal([&] { fields.done(); }).find("inner"), std::string::npos);
  Fields inner(*fields.object("inner"), "inner");
  EXPECT_NE(refusal([&] { inner.done(); }).find("inner.unknown"), std::string::npos);
  fields.done();
}

TEST(Fields, AKeyWithOneSupportedValueTakesNoOther) {
  const Json body = {{"store", true}, {"echo", false}};
  Fields fields(body);
  fields.only("echo", false, "x");
  fields.only("absent", false, "x");
  EXPECT_EQ(refusal([&] { fields.only("store", false, "is not kept"); }), "store: is not kept");
}

}  // namespace
}  // namespace atom::server
