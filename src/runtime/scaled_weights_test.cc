// Quantised matrices from safetensors to the parts that kernels read: every cut keeps every scale on its
// element.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "checkpoint/test_folder.h"
#include "nn/weight_format.h"
#include "ops/cpu/dequant.h"
#include "runtime/account.h"
#include "runtime/loader.h"
#include "tensor/small_floats.h"

namespace atom {
namespace {

using testing::error_of;
using testing::TestFolder;

struct Stored {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

std::string f32_bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * 4};
}

void write_safetensors(const TestFolder& folder, const std::vector<Stored>& tensors) {
  Json header;
  std::string data;
  for (const Stored& t : tensors) {
    header[t.name] = {{"dtype", t.dtype},
                      {"shape", t.shape},
                      {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
    data += t.bytes;
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  folder.write("model.safetensors", std::string(reinterpret_cast<const char*>(&size), 8) + text + data);
}

// One matrix `w.weight` in a format, as rank `rank` of `ranks` has it.
struct Declared {
  Declared(const Json& quantization, Piece piece, int rank = 0, int ranks = 1)
      : ranks_of_axis(in_process_communicators(ranks)) {
    tables.mesh.mlp = ranks_of_axis[rank].get();
    tables.format = make_weight_format(ConfigReader(quantization));
    tables.format->ignore_unread(Scope(tables));
    matrix = Scope(tables).matrix("w", {std::move(piece)});
  }
  std::vector<float> load(const TestFolder& folder, bool mmap = true) {
    const Checkpoint checkpoint = Checkpoint::open(folder.path());
    const Weights weights = load_weights(tables, checkpoint, {.mmap = mmap});
    const ops::Weight w = matrix;
    std::vector<float> values(static_cast<size_t>(w.rows * w.cols));
    int64_t row = 0;
    for (const ops::WeightPart& part : w.parts) {
      ops::check_part(part, w.cols);
      for (int64_t r = 0; r < part.data.dim(0); ++r, ++row)
        ops::dequantize_row(part, r, values.data() + row * w.cols);
    }
    return values;
  }
  std::vector<std::unique_ptr<Communicator>> ranks_of_axis;
  ModelTables tables;
  Matrix matrix;
};

Json fp8(int64_t rows, int64_t cols) {
  return {{"quant_method", "fp8"}, {"weight_block_size", {rows, cols}}};
}
Json fp8() { return {{"quant_method", "fp8"}}; }

Piece piece_of(int64_t rows, int64_t cols, Shard shard = {}) { return {{{"w.weight"}}, rows, cols, shard}; }

std::string ones(int64_t n) { return std::string(static_cast<size_t>(n), '\x38'); }

std::vector<float> counting(int64_t n) {
  std::vector<float> values(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) values[i] = static_cast<float>(i + 1);
  return values;
}

TEST(Fp8Blocks, RaggedBlocksKeepTheirSize) {
  const TestFolder folder;
  write_safetensors(folder, {{"w.weight", "F8_E4M3", {3, 5}, ones(15)},
                             {"w.weight_scale_inv", "F32", {2, 3}, f32_bytes(counting(6))}});
  const std::vector<float> want = {1, 1, 2, 2, 3, 1, 1, 2, 2, 3, 4, 4, 5, 5, 6};
  EXPECT_EQ(Declared(fp8(2, 2), piece_of(3, 5)).load(folder), want);
  EXPECT_EQ(Declared(fp8(2, 2), piece_of(3, 5)).load(folder, false), want);
}

TEST(Fp8Blocks, ThousandRowsHaveEightRowsOfScalesOf128) {
  const TestFolder folder;
  write_safetensors(folder, {{"w.weight", "F8_E4M3", {1000, 1}, ones(1000)},
                             {"w.weight_scale_inv", "F32", {8, 1}, f32_bytes(counting(8))}});
  const std::vector<float> got = Declared(fp8(128, 128), piece_of(1000, 1)).load(folder);
  EXPECT_EQ(got[126], 1);
  EXPECT_EQ(got[127], 1);
  EXPECT_EQ(got[128], 2);
  EXPECT_EQ(got[999], 8);
}

TEST(Fp8Blocks, RowCutsInsideABlockKeepTheScales) {
  const TestFolder folder;
  write_safetensors(folder, {{"w.weight", "F8_E4M3", {256, 1}, ones(256)},
                             {"w.weight_scale_inv", "F32", {2, 1}, f32_bytes(counting(2))}});
  for (int rank = 0; rank < 4; ++rank) {
    const std::vector<float> got =
        Declared(fp8(128, 128), piece_of(256, 1, Shard::by_rows(Axis::mlp)), rank, 4).load(folder);
    EXPECT_EQ(got, std::vector<float>(64, rank < 2 ? 1.0f : 2.0f)) << rank;
  }
  const TestFolder larger;
  write_safetensors(larger, {{"w.weight", "F8_E4M3", {384, 1}, ones(384)},
                             {"w.weight_scale_inv", "F32", {3, 1}, f32_bytes(counting(3))}});
  for (int rank = 0; rank < 2; ++rank) {
    const std::vector<float> got =
        Declared(fp8(128, 128), piece_of(384, 1, Shard::by_rows(Axis::mlp)), rank, 2).load(larger);
    const int whole = rank == 0 ? 128 : 64;
    for (int r = 0; r < 192; ++r)
      EXPECT_EQ(got[r], rank == 0 ? (r < whole ? 1 : 2) : (r < whole ? 2 : 3)) << r;
  }
}

TEST(Fp8Blocks, EveryCutGivesTheWholeMatrixTogether) {
  const TestFolder folder;
  constexpr int64_t kRows = 60, kCols = 84;
  std::string codes;
  for (int64_t i = 0; i < kRows * kCols; ++i) codes += static_cast<char>(i * 7 % 127);
  write_safetensors(folder, {{"w.weight", "F8_E4M3", {kRows, kCols}, codes},
                             {"w.weight_scale_inv", "F32", {4, 5}, f32_bytes(counting(20))}});
  for (const int ranks : {1, 2, 3, 4, 6}) {
    for (const int dim : {0, 1}) {
      for (int rank = 0; rank < ranks; ++rank) {
        const Shard shard{dim, Axis::mlp, 1, false};
        const std::vector<float> got =
            Declared(fp8(16, 20), piece_of(kRows, kCols, shard), rank, ranks).load(folder);
        const int64_t rows = dim == 0 ? kRows / ranks : kRows, cols = dim == 1 ? kCols / ranks : kCols;
        ASSERT_EQ(static_cast<int64_t>(got.size()), rows * cols);
        for (int64_t i = 0; i < rows * cols; ++i) {
          const int64_t r = i / cols + (dim == 0 ? rank * rows : 0),
                        c = i % cols + (dim == 1 ? rank * cols : 0);
          const float scale = static_cast<float>(r / 16 * 5 + c / 20 + 1);
          ASSERT_EQ(got[i], scale * f8e4m3_to_f32(static_cast<uint8_t>(codes[r * kCols + c])))
              << r << ", " << c;
        }
      }
    }
  }
}

TEST(Fp8Scales, PerTensorInAnyShapePerRowAndInAnyType) {
  const std::string codes = ones(6);
  const float half = 0.5f;
  const std::string half_f32 = f32_bytes({half});
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{}, {1}, {1, 1}}) {
    const TestFolder folder;
    write_safetensors(folder, {{"w.weight", "F8_E4M3", {2, 3}, codes},
                               {"w.weight_scale", "F32", shape, half_f32},
                               {"w.input_scale", "F32", {}, half_f32}});
    EXPECT_EQ(Declared(fp8(), piece_of(2, 3)).load(folder), std::vector<float>(6, half));
    Declared declared(fp8(), piece_of(2, 3));
    EXPECT_TRUE(account(declared.tables, Checkpoint::open(folder.path())).problems().empty());
  }
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{2}, {2, 1}}) {
    const TestFolder folder;
    write_safetensors(folder, {{"w.weight", "F8_E4M3", {2, 3}, codes},
                               {"w.weight_scale", "BF16", shape, std::string("\x80\x3F\x00\x40", 4)}});
    EXPECT_EQ(Declared(fp8(), piece_of(2, 3)).load(folder), (std::vector<float>{1, 1, 1, 2, 2, 2}));
  }
  const TestFolder folder;
  write_safetensors(folder, {{"w.weight", "F8_E4M3", {2, 3}, codes},
                             {"w.weight_scale_inv", "F8_E8M0", {1, 2}, "\x7E\x81"}});
  EXPECT_EQ(Declared(fp8(2, 2), piece_of(2, 3)).load(folder), (std::vector<float>{.5f, .5f, 4, .5f, .5f, 4}));
}

TEST(Fp8Scales, PartsOfAFusedMatrixKeepTheirOwn) {
  const TestFolder folder;
  write_safetensors(folder, {{"a.weight", "F8_E4M3", {1, 2}, "\x7E\x7E"},
                             {"a.weight_scale", "F32", {}, f32_bytes({.5f})},
                             {"b.weight", "F8_E4M3", {1, 2}, "\x7E\x7E"},
                             {"b.weight_scale", "F32", {}, f32_bytes({.25f})}});
  ModelTables tables;
  tables.format = make_weight_format(ConfigReader(fp8()));
  const Matrix both = Scope(tables).matrix("ab", {{{{"a.weight"}}, 1, 2, {}}, {{{"b.weight"}}, 1, 2, {}}});
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const Weights weights = load_weights(tables, checkpoint, {});
  const ops::Weight w = both;
  float row[2];
  ops::dequantize_row(w.parts[0], 0, row);
  EXPECT_EQ(row[0], 224);
  ops::dequantize_row(w.parts[1], 0, row);
  EXPECT_EQ(row[0], 112);
}

TEST(Fp8Scales, StackedExpertsReadTheirSlice) {
  const TestFolder folder;
  write_safetensors(folder, {{"w", "F8_E4M3", {2, 3, 2}, ones(12)},
                             {"w_scale_inv", "F32", {2, 2, 1}, f32_bytes(counting(4))}});
  Source source{"w", 1};
  source.begin = 1;
  source.stored_rows = 3;
  source.slices = 2;
  EXPECT_EQ(Declared(fp8(2, 2), Piece{{source}, 2, 2, {}}).load(folder), (std::vector<float>{3, 3, 4, 4}));
}

TEST(Fp8Account, MissingOrphanedAndMisshapedScalesAreErrors) {
  const auto problems = [](const std::vector<Stored>& tensors, const Json& quantization) {
    const TestFolder folder;
    write_safetensors(folder, tensors);
    Declared declared(quantization, piece_of(4, 4));
    std::string text;
    for (const std::string& line : account(declared.tables, Checkpoint::open(folder.path())).problems())
      text += line + "\n";
    return text;
  };
  const Stored weight{"w.weight", "F8_E4M3", {4, 4}, ones(16)};
  const Stored plain{"w.weight", "F32", {4, 4}, f32_bytes(counting(16))};
  const Stored scale{"w.weight_scale_inv", "F32", {2, 2}, f32_bytes(counting(4))};
  EXPECT_EQ(problems({weight, scale}, fp8(2, 2)), "");
  EXPECT_EQ(problems({plain}, fp8(2, 2)), "");
  EXPECT_NE(problems({weight}, fp8(2, 2)).find("w.weight_scale_inv: missing; w.weight is f8e4m3 [4, 4]"),
            std::string::npos);
  EXPECT_NE(problems({plain, scale}, fp8(2, 2)).find("w.weight_scale_inv: f32 [2, 2] is in the checkpoint"),
            std::string::npos);
  EXPECT_NE(problems({weight, scale}, fp8(2, 4))
                .find("w.weight_scale_inv: is f32 [2, 2], w.weight asks for [2, 1]"),
            std::string::npos);
  Json excluding = fp8(2, 2);
  excluding["modules_to_not_convert"] = {"w"};
  EXPECT_NE(problems({weight, scale}, excluding)
                .find("w.weight: stored as F8_E4M3, which quantization_config excludes"),
            std::string::npos);
}

// Blocks [E, N, K / 32, 16] whose byte i of row n holds codes (n + i) and (n + i + 1) of E2M1.
TEST(Mxfp4, AlternatingRowsAndColumnCutsKeepTheirScales) {
  constexpr int64_t kExperts = 2, kRows = 6, kCols = 64;
  std::string blocks, scales;
  for (int64_t n = 0; n < kExperts * kRows; ++n) {
    for (int64_t i = 0; i < kCols / 2; ++i) blocks += static_cast<char>((n + i) % 16 | (n + i + 1) % 16 << 4);
    for (int64_t b = 0; b < kCols / 32; ++b) scales += static_cast<char>(120 + n + b);
  }
  const TestFolder folder;
  write_safetensors(folder, {{"w_blocks", "U8", {kExperts, kRows, kCols / 32, 16}, blocks},
                             {"w_scales", "U8", {kExperts, kRows, kCols / 32}, scales}});
  for (const bool mmap : {true, false}) {
    for (int rank = 0; rank < 4; ++rank) {
      Source source{"w", 1};
      source.begin = 1;
      source.step = 2;
      source.stored_rows = kRows;
      source.slices = kExperts;
      source.transposed = true;  // of the plain form
      Declared declared({{"quant_method", "mxfp4"}}, Piece{{source}, 3, kCols, {1, Axis::mlp, 1, false}},
                        rank, 4);
      const std::vector<float> got = declared.load(folder, mmap);
      ASSERT_EQ(got.size(), 48u);
      for (int64_t i = 0; i < 48; ++i) {
        const int64_t n = kRows + 1 + 2 * (i / 16), c = rank * 16 + i % 16;
        const float value = f4e2m1_to_f32(static_cast<uint8_t>((n + c / 2 + c % 2) % 16));
        EXPECT_EQ(got[i], value * std::ldexp(1.0f, static_cast<int>(120 + n + c / 32 - 127)))
            << n << ", " << c;
      }
    }
  }
}

TEST(Mxfp4, ShapesThatDoNotFitAreErrors) {
  const TestFolder folder;
  write_safetensors(
      folder, {{"w_blocks", "U8", {1, 2, 1, 16}, std::string(32, 'a')}, {"w_scales", "U8", {1, 2, 1}, "ab"}});
  Source source{"w", 0};
  EXPECT_ERROR(Declared({{"quant_method", "mxfp4"}}, Piece{{source}, 2, 40, {}}).load(folder),
               "whole groups of 32");
  EXPECT_ERROR(Declared({{"quant_method", "mxfp4"}}, Piece{{source}, 2, 64, {}}).load(folder), "asks for");
}

Json quark(const Json& others = Json::object()) {
  const Json mxfp4 = {
      {"dtype", "fp4"}, {"qscheme", "per_group"}, {"group_size", 32}, {"scale_format", "e8m0"}};
  return {{"quant_method", "quark"},
          {"global_quant_config", {{"weight", mxfp4}}},
          {"layer_quant_config", others}};
}
Json compressed() {
  const Json mxfp4 = {{"num_bits", 4}, {"type", "float"}, {"strategy", "group"}, {"group_size", 32}};
  return {{"quant_method", "compressed-tensors"}, {"config_groups", {{"g", {{"weights", mxfp4}}}}}};
}

// Bytes [N, K / 2] and scales [N, K / 32] of rows as in Mxfp4's test above.
std::vector<Stored> flat_mxfp4(const std::string& name, const std::string& bytes, int64_t rows,
                               int64_t cols) {
  std::string codes, scales;
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t i = 0; i < cols / 2; ++i) codes += static_cast<char>((n + i) % 16 | (n + i + 1) % 16 << 4);
    for (int64_t b = 0; b < cols / 32; ++b) scales += static_cast<char>(120 + n + b);
  }
  return {{bytes, "U8", {rows, cols / 2}, codes}, {name + "_scale", "U8", {rows, cols / 32}, scales}};
}
float flat_value(int64_t n, int64_t c) {
  return f4e2m1_to_f32(static_cast<uint8_t>((n + c / 2 + c % 2) % 16)) *
         std::ldexp(1.0f, static_cast<int>(120 + n + c / 32 - 127));
}

TEST(FlatMxfp4, EveryCutGivesTheWholeMatrixTogether) {
  constexpr int64_t kRows = 12, kCols = 96;
  for (const auto& [quantization, bytes] :
       {std::pair{quark(), "w.weight"}, std::pair{compressed(), "w.weight_packed"}}) {
    const TestFolder folder;
    write_safetensors(folder, flat_mxfp4("w.weight", bytes, kRows, kCols));
    for (const int ranks : {1, 2, 3, 4, 6}) {
      for (const int dim : {0, 1}) {
        for (int rank = 0; rank < ranks; ++rank) {
          const std::vector<float> got =
              Declared(quantization, piece_of(kRows, kCols, {dim, Axis::mlp, 1, false}), rank, ranks)
                  .load(folder, rank % 2 == 0);
          const int64_t rows = dim == 0 ? kRows / ranks : kRows, cols = dim == 1 ? kCols / ranks : kCols;
          ASSERT_EQ(static_cast<int64_t>(got.size()), rows * cols);
          for (int64_t i = 0; i < rows * cols; ++i) {
            const int64_t r = i / cols + (dim == 0 ? rank * rows : 0),
                          c = i % cols + (dim == 1 ? rank * cols : 0);
            ASSERT_EQ(got[i], flat_value(r, c)) << bytes << ": " << r << ", " << c;
          }
        }
      }
    }
  }
}

TEST(FlatMxfp4, CutsWithinAByteAreRefused) {
  const TestFolder folder;
  write_safetensors(folder, flat_mxfp4("w.weight", "w.weight", 2, 32));
  EXPECT_ERROR(Declared(quark(), piece_of(2, 32, {1, Axis::mlp, 1, true}), 3, 5).load(folder),
               "w.weight: U8 stores blocks of 2 columns and cannot be cut at column 19");
}

TEST(FlatMxfp4, WhatAMatrixIsDecidesItsStorage) {
  const TestFolder folder;
  std::vector<Stored> tensors = flat_mxfp4("a.weight", "a.weight", 1, 32);
  tensors.push_back({"b.weight", "F8_E4M3", {1, 32}, ones(32)});
  tensors.push_back({"b.weight_scale", "F32", {}, f32_bytes({.5f})});
  tensors.push_back({"c.weight", "F32", {1, 32}, f32_bytes(counting(32))});
  write_safetensors(folder, tensors);
  ModelTables tables;
  const Json fp8_of_b = {{"b", {{"weight", {{"dtype", "fp8_e4m3"}, {"qscheme", "per_tensor"}}}}}};
  tables.format = make_weight_format(ConfigReader(quark(fp8_of_b)));
  std::vector<Piece> pieces;
  for (const char* name : {"a.weight", "b.weight", "c.weight"}) pieces.push_back({{{name}}, 1, 32, {}});
  const Matrix all = Scope(tables).matrix("abc", pieces);
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  EXPECT_TRUE(account(tables, checkpoint).problems().empty());
  const Weights weights = load_weights(tables, checkpoint, {});
  const ops::Weight w = all;
  float row[32];
  ops::dequantize_row(w.parts[0], 0, row);
  EXPECT_EQ(row[9], flat_value(0, 9));
  ops::dequantize_row(w.parts[1], 0, row);
  EXPECT_EQ(row[9], .5f);
  ops::dequantize_row(w.parts[2], 0, row);
  EXPECT_EQ(row[9], 10);
}

TEST(FlatMxfp4, WhatDoesNotFitIsAnErrorThatNamesIt) {
  const auto problems = [](const std::vector<Stored>& tensors, const Json& quantization, int64_t cols = 64) {
    const TestFolder folder;
    write_safetensors(folder, tensors);
    Declared declared(quantization, piece_of(2, cols));
    std::string text;
    for (const std::string& line : account(declared.tables, Checkpoint::open(folder.path())).problems())
      text += line + "\n";
    return text;
  };
  const std::vector<Stored> good = flat_mxfp4("w.weight", "w.weight", 2, 64);
  EXPECT_EQ(problems(good, quark()), "");
  EXPECT_EQ(problems({good[0]}, quark()),
            "w.weight_scale: missing; w.weight is u8 [2, 32] and means nothing without its scales\n");
  EXPECT_EQ(problems({good[0], {"w.weight_scale", "U8", {2, 1}, "ab"}}, quark()),
            "w.weight_scale: is u8 [2, 1], w.weight asks for [2, 2]\n");
  EXPECT_EQ(problems({good[0], {"w.weight_scale", "F8_E4M3", {2, 2}, "abcd"}}, quark()),
            "w.weight_scale: stored as F8_E4M3, which scales of w.weight cannot be\n");
  const Stored odd{"w.weight", "U8", {2, 20}, ones(40)};
  EXPECT_TRUE(
      problems({odd, good[1]}, quark(), 40).starts_with("w.weight: 40 columns are not whole groups of 32\n"));
  EXPECT_TRUE(
      problems(good, quark(), 96).starts_with("w.weight: is u8 [2, 32], the config asks for [2, 48]\n"));
  EXPECT_EQ(problems({{"w.weight", "F8_E4M3", {2, 64}, ones(128)}}, quark()),
            "w.weight: stored as F8_E4M3, which quantization_config excludes or does not mention\n");
  EXPECT_EQ(problems({good[0]}, quark({{"w", nullptr}})),
            "w.weight: stored as U8, which quantization_config excludes or does not mention\n");
  EXPECT_NE(problems(flat_mxfp4("v.weight", "v.weight_packed", 2, 64), compressed())
                .find("w.weight_packed: missing"),
            std::string::npos);
}

TEST(DummyWeights, QuantisedFormatsAreFiniteAndOfUsualSize) {
  for (const Json& quantization : {fp8(128, 128), fp8(), Json{{"quant_method", "mxfp4"}}}) {
    Source source{"w", 0};
    source.slices = 1;
    Declared declared(quantization, Piece{{source}, 100, 320, {}});
    const Weights weights = dummy_weights(declared.tables, DType::bf16, {.threads = 1});
    const ops::Weight w = declared.matrix;
    EXPECT_TRUE(is_scaled_type(w.parts[0].data.dtype));
    double squares = 0;
    std::vector<float> row(320);
    for (int64_t r = 0; r < 100; ++r) {
      ops::dequantize_row(w.parts[0], r, row.data());
      for (const float v : row) squares += double{v} * v;
    }
    EXPECT_NEAR(std::sqrt(squares / 100), 1, 0.4) << quantization.dump();  // of a row: unit-variance products
  }
}

TEST(DummyWeights, TakeTheTypeOfEachModule) {
  const Json fp8_of_w = {{"w", {{"weight", {{"dtype", "fp8_e4m3"}, {"qscheme", "per_tensor"}}}}}};
  for (const auto& [quantization, type] :
       {std::pair{quark(), DType::f4e2m1x2}, std::pair{compressed(), DType::f4e2m1x2},
        std::pair{quark(fp8_of_w), DType::f8e4m3}, std::pair{quark({{"w", nullptr}}), DType::bf16}}) {
    Declared declared(quantization, piece_of(8, 96, Shard::by_cols(Axis::mlp)), 1, 2);
    const Weights weights = dummy_weights(declared.tables, DType::bf16, {.threads = 1});
    const ops::Weight w = declared.matrix;
    EXPECT_EQ(w.parts[0].data.dtype, type) << quantization.dump();
    ops::check_part(w.parts[0], 48);
  }
}

}  // namespace
}  // namespace atom
