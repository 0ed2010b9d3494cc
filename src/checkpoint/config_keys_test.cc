// Typed config keys: ranges, spellings, head_dim and dtype rules.
#include "checkpoint/config_keys.h"

#include "checkpoint/test_folder.h"

namespace atom {
namespace {

Json json(const char* text) { return parse_json(text, "test"); }

TEST(ConfigReader, ReadsTypedKeysAndTreatsNullAsAbsent) {
  const Json config = json(
      R"({"n": 4, "f": 4096.0, "x": 0.5, "b": true, "s": "silu", "none": null, "list": [1, 2], "one": 3, "texts": ["a"], "sub": {"k": 1}})");
  const ConfigReader c(config);
  EXPECT_EQ(c.integer("n"), 4);
  EXPECT_EQ(c.integer("f"), 4096);
  EXPECT_EQ(c.number("x"), 0.5);
  EXPECT_EQ(c.number("n"), 4.0);
  EXPECT_TRUE(c.boolean("b"));
  EXPECT_EQ(c.text("s"), "silu");
  EXPECT_FALSE(c.has("none"));
  EXPECT_EQ(c.integer_or("none", 9), 9);
  EXPECT_EQ(c.integer_if("none"), std::nullopt);
  EXPECT_EQ(c.integers("list"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(c.integers("one"), std::vector<int64_t>{3});
  EXPECT_TRUE(c.integers("absent").empty());
  EXPECT_EQ(c.texts("texts"), std::vector<std::string>{"a"});
  EXPECT_EQ(c.section("sub")->integer("k"), 1);
  EXPECT_FALSE(c.section("none"));
}

TEST(ConfigReader, ErrorsNameFileKeyAndValue) {
  const Json config = json(
      R"({"n": -1, "x": 1.5, "b": "yes", "s": 3, "list": [1, "a"], "big": 18446744073709551615, "sub": {"k": true}, "inf": {"__float__": "Infinity"}})");
  const ConfigReader c(config, "m/config.json");
  EXPECT_ERROR(c.integer("absent"), "m/config.json: absent: this key is required and missing");
  EXPECT_ERROR(c.integer("n"), "m/config.json: n: -1 is not between 0 and");
  EXPECT_ERROR(c.integer("x"), "x: 1.5 is not an integer");
  EXPECT_ERROR(c.integer("big"), "is not an integer");
  EXPECT_ERROR(c.number("x", 0, 1), "x: 1.5 is not between 0 and 1");
  EXPECT_ERROR(c.number("inf"), "is not a number");
  EXPECT_ERROR(c.boolean("b"), "b: \"yes\" is not true or false");
  EXPECT_ERROR(c.text("s"), "s: 3 is not a string");
  EXPECT_ERROR(c.integers("list"), "list: \"a\" is not an integer");
  EXPECT_ERROR(c.texts("list"), "list: 1 is not a string");
  EXPECT_ERROR(c.section("sub")->integer("k"), "m/config.json: sub: k: true is not an integer");
  EXPECT_ERROR(c.section("n"), "m/config.json: n: not a JSON object");
}

TEST(ConfigReader, SpellingsMustAgree) {
  const Json config = json(R"({"a": 1, "b": 1.0, "c": 2, "d": null})");
  const ConfigReader c(config);
  EXPECT_EQ(c.spelling({"a", "b"}), "a");
  EXPECT_EQ(c.spelling({"d", "c"}), "c");
  EXPECT_EQ(c.spelling({"x", "y"}), "x");
  EXPECT_ERROR(c.spelling({"a", "c"}), "a is 1 but c is 2");
}

TEST(Config, NonJsonNumbersAreACleanErrorWithTheByte) {
  EXPECT_ERROR(parse_json(R"({"rope_theta": Infinity})", "config.json"),
               "config.json: not valid JSON at byte 16");
  EXPECT_ERROR(parse_json(R"({"a": NaN})", "config.json"), "at byte 7");
}

int64_t head_dim(const char* text) {
  const Json config = json(text);
  return read_head_dim(ConfigReader(config));
}

TEST(Config, HeadDimIsExplicitOrDerived) {
  EXPECT_EQ(head_dim(R"({"hidden_size": 5120, "num_attention_heads": 64, "head_dim": 128})"), 128);
  EXPECT_EQ(head_dim(R"({"hidden_size": 4096, "num_attention_heads": 32, "head_dim": null})"), 128);
  EXPECT_EQ(head_dim(R"({"hidden_size": 4096, "num_attention_heads": 32})"), 128);
  EXPECT_EQ(head_dim(R"({"hidden_size": 1792, "num_attention_heads": 24, "head_dim": 64})"), 64);
  EXPECT_ERROR(head_dim(R"({"hidden_size": 1792, "num_attention_heads": 24})"),
               "hidden_size 1792 is not divisible by num_attention_heads 24");
  EXPECT_ERROR(head_dim(R"({"hidden_size": 1792, "num_attention_heads": 24, "head_dim": 0})"), "head_dim: 0");
  EXPECT_ERROR(head_dim(R"({"hidden_size": 1792, "num_attention_heads": 0})"), "num_attention_heads: 0");
}

TEST(Config, CountsAndWindowsHaveBounds) {
  const Json config = json(
      R"({"num_hidden_layers": 1099511627776, "sliding_window": 2147483648, "rms_norm_eps": -1, "none": null})");
  const ConfigReader reader(config);
  EXPECT_ERROR(read_layers(reader), "num_hidden_layers: 1099511627776");
  EXPECT_ERROR(read_window(reader, 0), "sliding_window: 2147483648");
  EXPECT_ERROR(read_norm_eps(reader, 1e-6), "rms_norm_eps: -1");
  const Json empty = json("{}");
  EXPECT_EQ(read_window(ConfigReader(empty), 4096), 4096);
  const Json none = json(R"({"sliding_window": null})");
  EXPECT_EQ(read_window(ConfigReader(none), 4096), 0);
  EXPECT_FLOAT_EQ(read_norm_eps(ConfigReader(empty), 1e-5), 1e-5F);
}

std::optional<DType> dtype(const char* text) {
  const Json config = json(text);
  return read_dtype(ConfigReader(config));
}

TEST(Config, DtypeIsReadUnderBothSpellings) {
  EXPECT_EQ(dtype(R"({"torch_dtype": "bfloat16"})"), DType::bf16);
  EXPECT_EQ(dtype(R"({"dtype": "float16"})"), DType::f16);
  EXPECT_EQ(dtype(R"({"dtype": "torch.float32"})"), DType::f32);
  EXPECT_EQ(dtype(R"({"dtype": "bfloat16", "torch_dtype": "torch.bfloat16"})"), DType::bf16);
  EXPECT_EQ(dtype(R"({"torch_dtype": null})"), std::nullopt);
  EXPECT_ERROR(dtype(R"({"dtype": "float16", "torch_dtype": "bfloat16"})"),
               "dtype is \"float16\" but torch_dtype is");
  EXPECT_ERROR(dtype(R"({"dtype": "int7"})"), "dtype: \"int7\"");
}

}  // namespace
}  // namespace atom
