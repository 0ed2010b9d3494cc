// safetensors: what loads, what is refused and how, and that written files read back.
#include "checkpoint/safetensors.h"

#include <sys/resource.h>

#include <cstring>
#include <fstream>

#include "checkpoint/test_folder.h"

namespace atom {
namespace {

using testing::as_span;
using testing::TestFolder;

std::string u64(uint64_t value) {
  std::string text(8, '\0');
  std::memcpy(text.data(), &value, 8);
  return text;
}

std::string file_with(std::string_view header, size_t data_bytes) {
  return u64(header.size()) + std::string(header) + std::string(data_bytes, '\0');
}

SafetensorsHeader parse(const std::string& file) {
  return parse_safetensors(as_span(file), static_cast<int64_t>(file.size()), "x.safetensors");
}

std::string entry(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return R"({"a":{"dtype":")" + std::string(dtype) + R"(","shape":)" + std::string(shape) +
         R"(,"data_offsets":)" + std::string(offsets) + "}}";
}

constexpr std::string_view kMinimum = R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})";

TEST(Safetensors, LoadsTheSmallestGoodFile) {
  ASSERT_EQ(kMinimum.size(), 61u);
  const SafetensorsHeader header = parse(file_with(kMinimum, 8));
  ASSERT_EQ(header.tensors.size(), 1u);
  const StoredTensor& a = header.tensors[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.dtype, DType::f32);
  EXPECT_EQ(a.shape, std::vector<int64_t>{2});
  EXPECT_EQ(a.offset, 8 + 61);
  EXPECT_EQ(a.bytes, 8);
  EXPECT_EQ(to_string(a), "f32 [2]");
}

TEST(Safetensors, AcceptsAHeaderPaddedWithSpaces) {
  EXPECT_EQ(parse(file_with(std::string(kMinimum) + "   ", 8)).tensors[0].offset, 72);
}

TEST(Safetensors, KeepsMetadataApartFromTensors) {
  const auto header =
      parse(file_with(R"({"__metadata__":{"format":"pt"},)" + std::string(kMinimum.substr(1)), 8));
  EXPECT_EQ(header.tensors.size(), 1u);
  EXPECT_EQ(header.metadata.at("format"), "pt");
}

TEST(Safetensors, AcceptsScalarsAndEmptyTensors) {
  const auto header = parse(file_with(
      R"({"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"e":{"dtype":"BF16","shape":[0,7],"data_offsets":[8,8]}})",
      8));
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.tensors[0].bytes, 8);
  EXPECT_EQ(header.tensors[1].bytes, 0);
}

TEST(Safetensors, OrdersTensorsByOffset) {
  const auto header = parse(file_with(
      R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[5,8]},"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}})",
      8));
  EXPECT_EQ(header.tensors[0].name, "a");
  EXPECT_EQ(header.tensors[1].name, "b");
}

TEST(Safetensors, MapsEveryUsableType) {
  const std::pair<const char*, DType> types[] = {
      {"F32", DType::f32},        {"F16", DType::f16},      {"BF16", DType::bf16}, {"F8_E4M3", DType::f8e4m3},
      {"F8_E5M2", DType::f8e5m2}, {"F8_E8M0", DType::e8m0}, {"I8", DType::i8},     {"U8", DType::u8},
      {"BOOL", DType::u8},        {"I16", DType::i16},      {"I32", DType::i32},   {"I64", DType::i64}};
  for (const auto& [name, dtype] : types) {
    const auto bytes = static_cast<size_t>(dtype_bytes(dtype, 3));
    const auto header = parse(file_with(entry(name, "[3]", "[0," + std::to_string(bytes) + "]"), bytes));
    EXPECT_EQ(usable_dtype(header.tensors[0]), dtype) << name;
    EXPECT_EQ(header.tensors[0].dtype_name, name);
  }
}

TEST(Safetensors, UnsupportedTypeMattersOnlyWhenClaimed) {
  const auto header = parse(file_with(entry("F64", "[1]", "[0,8]"), 8));
  EXPECT_ERROR(usable_dtype(header.tensors[0]), "tensor a: element type F64 is not supported");
  const auto nibbles = parse(file_with(entry("F4", "[4,4]", "[0,8]"), 8));
  EXPECT_ERROR(usable_dtype(nibbles.tensors[0]), "F4");
  const auto deep = parse(file_with(entry("U8", "[1,1,1,1,1,1,8]", "[0,8]"), 8));
  EXPECT_ERROR(usable_dtype(deep.tensors[0]), "7 dims");
}

struct BadFile {
  const char* what;
  std::string content;
  const char* message;
};

std::string nested(int depth) {
  return std::string(static_cast<size_t>(depth), '[') + "2" + std::string(static_cast<size_t>(depth), ']');
}

std::vector<BadFile> bad_files() {
  const std::string good(kMinimum);
  return {
      {"empty", "", "only 0 bytes"},
      {"7 bytes", "1234567", "only 7 bytes"},
      {"no json", u64(4) + "XXXXYYYY", "not valid JSON"},
      {"huge length", u64(uint64_t{1} << 63) + good, "more than the"},
      {"all ones length", u64(~uint64_t{0}) + good, "more than the"},
      {"length one too long", u64(8 + 61 + 8 - 7) + good + std::string(8, '\0'), "cut short"},
      {"length 200 M", u64(200'000'000) + std::string(92, ' '), "more than the"},
      {"length 90 M", u64(90'000'000) + std::string(92, ' '), "cut short"},
      {"not UTF-8", file_with("{\"\xFF\xFE\": {}}", 0), "not valid JSON"},
      {"a list", file_with("[]", 0), "not a JSON object"},
      {"a number", file_with("7", 0), "not a JSON object"},
      {"empty header", file_with("", 0), "not valid JSON"},
      {"two values", file_with("{} {}", 0), "not valid JSON"},
      {"wrapping product", file_with(entry("F32", "[4294967296,4294967296]", "[0,0]"), 0), "overflows"},
      {"wrapping bytes", file_with(entry("I64", "[2305843009213693952]", "[0,0]"), 0), "overflows"},
      {"overflow beside zero", file_with(entry("F32", "[0,4294967296,4294967296]", "[0,0]"), 0), "overflows"},
      {"backwards", file_with(entry("F32", "[2]", "[8,0]"), 8), "run backwards"},
      {"end 2^63", file_with(entry("F32", "[2]", "[0,9223372036854775808]"), 8), "something else than"},
      {"past the end", file_with(entry("F32", "[4]", "[0,16]"), 8), "cut short"},
      {"begins past the end", file_with(entry("F32", "[0]", "[9,9]"), 8), "past the file"},
      {"size mismatch", file_with(entry("F32", "[2]", "[0,4]"), 4), "needs 8 bytes"},
      {"odd nibbles", file_with(entry("F4", "[3]", "[0,1]"), 1), "needs 2 bytes"},
      {"unknown type", file_with(entry("F33", "[2]", "[0,8]"), 8), "unknown dtype F33"},
      {"negative dim", file_with(entry("F32", "[-2]", "[0,8]"), 8), "integers from 0"},
      {"fractional dim", file_with(entry("F32", "[2.5]", "[0,8]"), 8), "integers from 0"},
      {"text dim", file_with(entry("F32", "[\"2\"]", "[0,8]"), 8), "integers from 0"},
      {"nested shape", file_with(entry("F32", nested(2), "[0,8]"), 8), "integers from 0"},
      {"shape nested 64 deep", file_with(entry("F32", nested(64), "[0,8]"), 8), "not valid JSON"},
      {"nine dims", file_with(entry("U8", "[1,1,1,1,1,1,1,1,8]", "[0,8]"), 8), "more than 8"},
      {"three offsets", file_with(entry("F32", "[2]", "[0,4,8]"), 8), "more than 2"},
      {"one offset", file_with(entry("F32", "[2]", "[0]"), 8), "1 numbers, not 2"},
      {"no shape", file_with(R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", 8), "is missing"},
      {"dtype twice", file_with(R"({"a":{"dtype":"F32","dtype":"I8","shape":[2],"data_offsets":[0,8]}})", 8),
       "given twice"},
      {"entry not an object", file_with(R"({"a":[]})", 0), "not a JSON object"},
      {"metadata not text", file_with(R"({"__metadata__":{"a":1}})", 0), "not a string"},
      {"same name twice",
       file_with(
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
           2),
       "tensor a is listed twice"},
      {"overlap",
       file_with(
           R"({"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
           8),
       "overlap"},
      {"hole",
       file_with(
           R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
           8),
       "unused bytes"},
      {"bytes at the end", file_with(good, 9), "after the last tensor"},
      {"cut by one byte", file_with(good, 7), "cut short"},
      {"zip", "PK\x03\x04" + std::string(200, '\x11'), "zip archive"},
      {"gguf", std::string("GGUF\x03\0\0\0", 8) + std::string(200, '\0'), "GGUF file"},
      {"pickle", "\x80\x02}q\x01(X\x06" + std::string(200, 'x'), "pickle"},
      {"lfs pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n",
       "Git LFS pointer"},
      {"web page", "<!doctype html><html></html>", "web page"},
  };
}

TEST(Safetensors, RefusesEveryDamagedFileWithItsName) {
  for (const BadFile& file : bad_files()) {
    SCOPED_TRACE(file.what);
    EXPECT_ERROR(parse(file.content), file.message);
    EXPECT_ERROR(parse(file.content), "x.safetensors: ");
  }
}

TEST(Safetensors, DamagedFilesCostNoMemory) {
  const TestFolder folder;
  rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  for (const BadFile& bad : bad_files()) {
    SCOPED_TRACE(bad.what);
    const auto path = folder.write("bad.safetensors", bad.content);
    EXPECT_ERROR(read_safetensors_header(File(path)), "bad.safetensors: ");
  }
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 16 * 1024);  // KiB
}

TEST(Safetensors, ErrorsStayOneReadableLine) {
  const std::string header =
      R"({"a\nb\u0000)" + std::string(5000, 'z') + R"(":{"dtype":"F33","shape":[],"data_offsets":[0,0]}})";
  const std::string message = testing::error_of([&] { parse(file_with(header, 0)); });
  EXPECT_LT(message.size(), 400u);
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(Safetensors, WrittenFilesReadBack) {
  const TestFolder folder;
  float logits[6] = {1, 2, 3, 4, 5, 6};
  uint16_t bf16[2] = {0x3F80, 0x4000};
  const NamedTensor tensors[] = {{"logits", make_tensor(logits, DType::f32, {2, 3})},
                                 {"odd \"name\"", make_tensor(bf16, DType::bf16, {2})}};
  write_safetensors(folder / "out.safetensors", tensors, {{"made_by", "test"}});
  const File file(folder / "out.safetensors");
  const SafetensorsHeader header = read_safetensors_header(file);
  ASSERT_EQ(header.tensors.size(), 2u);
  EXPECT_EQ(header.metadata.at("made_by"), "test");
  EXPECT_EQ(header.tensors[0].name, "logits");
  EXPECT_EQ(header.tensors[0].offset % 64, 0);
  EXPECT_EQ(header.tensors[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header.tensors[1].name, "odd \"name\"");
  float back[6];
  file.read_at(header.tensors[0].offset, std::as_writable_bytes(std::span(back)));
  EXPECT_EQ(std::memcmp(back, logits, sizeof back), 0);
  // Nothing else is left in the folder.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(Safetensors, WriteErrorNamesThePath) {
  const NamedTensor none[] = {{"a", Tensor{}}};
  EXPECT_ERROR(write_safetensors("/nonexistent/folder/x.safetensors", std::span(none).first(0)),
               "/nonexistent");
}

}  // namespace
}  // namespace atom
