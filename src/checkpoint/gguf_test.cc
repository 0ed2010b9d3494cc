// GGUF container: what is read, what is refused.
#include "checkpoint/gguf.h"

#include "checkpoint/gguf_builder.h"
#include "checkpoint/test_folder.h"

namespace atom {
namespace {

using namespace testing;

GgufFile parse(const std::string& file) { return parse_gguf(as_span(file), "x.gguf"); }

TEST(Gguf, ReadsEveryKindOfValue) {
  GgufBuilder b;
  b.u32("count", 7).f32("eps", 0.5f).boolean("flag", true).text("name", "llama").texts("list", {"a", "bc"});
  b.list<float>("scores", kGgufF32, {1, -2}).list<int32_t>("types", 5, {3, -1});
  b.entry("i8", 1, raw<int8_t>(-3)).entry("i64", 11, raw<int64_t>(-4)).entry("f64", 12, raw(0.25));
  b.entry("u64", 10, raw<uint64_t>(1)).list<uint8_t>("flags", kGgufBool, {0, 1});
  const GgufFile file = parse(b.build());
  EXPECT_EQ(file.version, 3);
  EXPECT_EQ(file.integer("count"), 7);
  EXPECT_EQ(file.integer("i8"), -3);
  EXPECT_EQ(file.integer("i64"), -4);
  EXPECT_EQ(file.integer("u64"), 1);
  EXPECT_EQ(file.number("eps"), 0.5);
  EXPECT_EQ(file.number("f64"), 0.25);
  EXPECT_EQ(file.number("count"), 7.0);
  EXPECT_EQ(file.boolean("flag"), true);
  EXPECT_EQ(file.text("name"), "llama");
  EXPECT_EQ(std::get<std::vector<std::string>>(*file.find("list")), (std::vector<std::string>{"a", "bc"}));
  EXPECT_EQ(std::get<std::vector<double>>(*file.find("scores")), (std::vector<double>{1, -2}));
  EXPECT_EQ(std::get<std::vector<int64_t>>(*file.find("types")), (std::vector<int64_t>{3, -1}));
  EXPECT_EQ(std::get<std::vector<int64_t>>(*file.find("flags")), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(file.integer("absent"), std::nullopt);
  EXPECT_ERROR(file.integer("name"), "x.gguf: key name is not an integer");
}

TEST(Gguf, ReversesDimsAndPlacesTensors) {
  GgufBuilder b;
  b.tensor("w", {32, 3}, 8, std::string(3 * 34, 'x')).tensor("v", {2, 3, 4}, 0, std::string(96, 'y'));
  for (const uint32_t version : {2u, 3u}) {
    const std::string bytes = b.build(version);
    const GgufFile file = parse(bytes);
    ASSERT_EQ(file.tensors.size(), 2u);
    EXPECT_EQ(file.tensors[0].shape, (std::vector<int64_t>{3, 32}));
    EXPECT_EQ(file.tensors[0].dtype, DType::q8_0);
    EXPECT_EQ(file.tensors[0].bytes, 3 * 34);
    EXPECT_EQ(bytes.substr(static_cast<size_t>(file.tensors[0].offset), 102), std::string(102, 'x'));
    EXPECT_EQ(file.tensors[1].shape, (std::vector<int64_t>{4, 3, 2}));
    EXPECT_EQ(bytes[static_cast<size_t>(file.tensors[1].offset)], 'y');
  }
}

TEST(Gguf, HonoursTheAlignmentKey) {
  GgufBuilder b;
  b.u32("general.alignment", 64).tensor("w", {8}, 0, std::string(32, 'x'));
  std::string file = b.head();
  file.resize((file.size() + 63) / 64 * 64, '\0');
  const GgufFile parsed = parse(file + std::string(32, 'x'));
  EXPECT_EQ(parsed.tensors[0].offset % 64, 0);
  EXPECT_ERROR(parse(GgufBuilder().u32("general.alignment", 24).build()), "not a power of two");
}

TEST(Gguf, UnsupportedTypeMattersOnlyWhenClaimed) {
  GgufBuilder b;
  b.tensor("w", {256, 2}, 10, std::string(168, 'x'));
  const GgufFile file = parse(b.build());
  EXPECT_EQ(file.tensors[0].bytes, 168);
  EXPECT_ERROR(usable_dtype(file.tensors[0]), "tensor w: element type Q2_K is not supported");
  EXPECT_ERROR(parse(GgufBuilder().tensor("w", {32}, 77, std::string(32, 'x')).build()),
               "tensor w: unknown element type number 77");
}

TEST(Gguf, RefusesEveryDamagedFile) {
  const auto with_key = [](uint32_t type, const std::string& value) {
    return GgufBuilder().entry("k", type, value).build();
  };
  const std::string array_of_arrays = raw<uint32_t>(kGgufArray) + raw<uint64_t>(1);
  const std::pair<std::string, const char*> cases[] = {
      {"", "does not begin with GGUF"},
      {"GGU", "does not begin with GGUF"},
      {"GGUF", "ends inside the version"},
      {GgufBuilder().build(1), "version 1 is not supported"},
      {"GGUF" + raw(__builtin_bswap32(3)) + std::string(64, '\0'), "big-endian"},
      {"GGUF" + raw<uint32_t>(3) + raw<uint64_t>(1ull << 60) + raw<uint64_t>(0), "the tensor count"},
      {"GGUF" + raw<uint32_t>(3) + raw<uint64_t>(0) + raw<uint64_t>(~0ull), "the metadata count"},
      {"GGUF" + raw<uint32_t>(3) + raw<uint64_t>(0) + raw<uint64_t>(5), "ends inside a metadata key"},
      {"GGUF" + raw<uint32_t>(3) + raw<uint64_t>(5) + raw<uint64_t>(0), "ends inside a tensor name"},
      {with_key(99, std::string(8, '\0')), "unknown value type 99"},
      {with_key(kGgufBool, "\x02"), "not a truth value"},
      {with_key(kGgufString, raw<uint64_t>(1ull << 40)), "more than"},
      {with_key(kGgufArray, raw<uint32_t>(kGgufF32) + raw<uint64_t>(1ull << 40)), "more than"},
      {with_key(kGgufArray, raw<uint32_t>(kGgufF32) + raw<uint64_t>(1ull << 20)), "cut short"},
      {with_key(kGgufArray, raw<uint32_t>(kGgufString) + raw<uint64_t>(1ull << 20)), "cut short"},
      {with_key(kGgufArray, raw<uint32_t>(50) + raw<uint64_t>(0)), "unknown value type 50"},
      {with_key(kGgufArray, array_of_arrays + array_of_arrays), "arrays of arrays"},
      {with_key(10, raw<uint64_t>(~0ull)), "too large"},
      {GgufBuilder().u32("k", 1).u32("k", 2).build(), "key k is given twice"},
      {GgufBuilder().u32("a\nb", 1).build(), "not readable text"},
      {GgufBuilder().tensor("\xFF", {8}, 0, std::string(32, 'x')).build(), "not readable text"},
      {GgufBuilder().tensor("w", {}, 0, "").build(), "0 dims"},
      {GgufBuilder().tensor("w", {1, 1, 1, 1, 1}, 0, "").build(), "5 dims"},
      {GgufBuilder().tensor("w", {1ull << 32, 1ull << 32}, 0, "").build(), "does not suit"},
      {GgufBuilder().tensor("w", {1ull << 62}, 0, "").build(), "overflows"},
      {GgufBuilder().tensor("w", {~0ull}, 0, "").build(), "more than"},
      {GgufBuilder().tensor("w", {33}, 8, std::string(64, 'x')).build(), "does not suit Q8_0"},
      {GgufBuilder().tensor("w", {16, 2}, 8, std::string(64, 'x')).build(), "does not suit Q8_0"},
      {GgufBuilder().tensor("w", {8}, 0, std::string(32, 'x')).tensor_at("w", {8}, 0, 32).build(),
       "tensor w is listed twice"},
      {GgufBuilder().tensor("w", {16}, 0, std::string(64, 'x')).tensor_at("v", {8}, 0, 32).build(),
       "overlap"},
      {GgufBuilder().tensor_at("w", {8}, 0, 4, std::string(64, 'x')).build(), "not a multiple of 32"},
      {GgufBuilder().tensor_at("w", {8}, 0, 1ull << 62, std::string(64, 'x')).build(), "cut short"},
      {GgufBuilder().tensor_at("w", {8}, 0, INT64_MAX - 31, std::string(64, 'x')).build(), "cut short"},
  };
  for (const auto& [file, message] : cases) {
    EXPECT_ERROR(parse(file), message);
    EXPECT_ERROR(parse(file), "x.gguf: ");
  }
}

TEST(Gguf, EveryTruncationIsAnError) {
  const std::string file = tiny_gguf().build();
  ASSERT_EQ(parse(file).tensors.size(), 5u);
  for (size_t length = 0; length < file.size(); length += length < 2000 ? 1 : 37) {
    EXPECT_THROW(parse(file.substr(0, length)), Error) << length;
  }
}

}  // namespace
}  // namespace atom
