// Products with weights that have scales beside them, each GPU entry against the CPU reference: types, kinds
// of scales, odd shapes, cuts, strides, numbers of rows.
#include <gtest/gtest.h>

#include "ops/embed.h"
#include "ops/gpu/device_test.h"
#include "ops/linear.h"

namespace atom::ops {
namespace {

// A kind of stored matrix: its scales, the place of its first element in their blocks, bytes before the first
// row and between rows.
struct Kind {
  DType type;
  int64_t block_rows, block_cols;  // 0: all
  int64_t first_row = 0, first_col = 0;
  int64_t offset = 0, gap = 0;
  int largest_scale = 127;  // of E8M0
  int64_t scale_pitch = 1;  // rows of scales begin at multiples of so many
};

class GpuFormats : public GpuOps {
 protected:
  struct PartTwin {
    WeightPart host, device;
  };

  PartTwin part(const Kind& kind, int64_t rows, int64_t cols) {
    if (!is_scaled_type(kind.type)) {
      const Twin plain = random({rows, cols}, kind.type, 1 / std::sqrt(static_cast<float>(cols)));
      return {{plain.host, {}}, {plain.device, {}}};
    }
    const int64_t block_rows = kind.block_rows > 0 ? kind.block_rows : rows + kind.first_row;
    const int64_t block_cols = kind.block_cols > 0 ? kind.block_cols : cols + kind.first_col;
    const int64_t down = (kind.first_row + rows + block_rows - 1) / block_rows;
    const int64_t across = ((kind.first_col + cols + block_cols - 1) / block_cols + kind.scale_pitch) /
                           kind.scale_pitch * kind.scale_pitch;  // more than are used
    const int64_t row_bytes = dtype_bytes(kind.type, cols) + kind.gap;
    auto& bytes = memory_.emplace_back(static_cast<size_t>(kind.offset + rows * row_bytes));
    for (std::byte& b : bytes) {
      do {
        b = static_cast<std::byte>(rng_());
      } while (kind.type == DType::f8e4m3 && (b & std::byte{0x7F}) == std::byte{0x7F});
    }
    const DType scale_type = kind.type == DType::f8e4m3 ? DType::f32 : DType::e8m0;
    auto& scales = memory_.emplace_back(static_cast<size_t>(dtype_bytes(scale_type, down * across)));
    for (int64_t i = 0; i < down * across; ++i) {
      const float scale = 1e-3f * static_cast<float>(1 + rng_() % 1000);
      if (scale_type == DType::f32) std::memcpy(&scales[4 * i], &scale, 4);
      if (scale_type == DType::e8m0) scales[i] = static_cast<std::byte>(kind.largest_scale - rng_() % 8);
    }
    auto view = [&](void* data, void* scale_data, Device device) {
      WeightPart p{make_tensor(static_cast<std::byte*>(data) + kind.offset, kind.type, {rows, cols}, device),
                   {}};
      p.data.strides[0] = row_bytes * (kind.type == DType::f4e2m1x2 ? 2 : 1);
      p.scale = {make_tensor(scale_data, scale_type, {down, across}, device), block_rows, block_cols,
                 kind.first_row, kind.first_col};
      return p;
    };
    return {view(bytes.data(), scales.data(), {}),
            view(upload(bytes.data(), static_cast<int64_t>(bytes.size())),
                 upload(scales.data(), static_cast<int64_t>(scales.size())), device_)};
  }
  void forget() {
    memory_.clear();
    buffers_.clear();
  }
};

constexpr DType kFp8 = DType::f8e4m3, kFp4 = DType::f4e2m1x2;
const Kind kKinds[] = {{kFp8, 128, 128},
                       {kFp8, 64, 256, 40, 128},
                       {kFp8, 128, 128, 0, 0, 0, 16},
                       {kFp8, 1, 0},
                       {kFp8, 0, 0},
                       {kFp8, 64, 256},
                       {kFp8, 24, 40},             // not a step of columns
                       {kFp8, 128, 128, 5, 37},    // a cut within a block
                       {kFp8, 128, 128, 0, 0, 1},  // not aligned
                       {kFp4, 1, 32},
                       {kFp4, 1, 32, 0, 0, 0, 16},
                       {kFp4, 1, 32, 0, 0, 0, 0, 150},  // more than one factor of bf16 holds
                       {kFp4, 1, 32, 0, 0, 0, 0, 100},
                       {kFp4, 1, 32, 0, 0, 0, 0, 127, 16},
                       {kFp4, 1, 32, 0, 0, 0, 32, 150, 8},
                       {kFp4, 1, 32, 0, 6},
                       {kFp4, 1, 32, 0, 0, 1}};

std::string describe(const Kind& k, int64_t rows, int64_t cols, int64_t tokens) {
  return std::string(dtype_name(k.type)) + " in " + std::to_string(k.block_rows) + "x" +
         std::to_string(k.block_cols) + " from " + std::to_string(k.first_row) + "," +
         std::to_string(k.first_col) + " offset " + std::to_string(k.offset) + " gap " +
         std::to_string(k.gap) + ": " + std::to_string(rows) + "x" + std::to_string(cols) + " tokens " +
         std::to_string(tokens);
}

// By places in kKinds.
class GpuFormatsOfAllKinds : public GpuFormats, public testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(, GpuFormatsOfAllKinds, testing::Range(0, static_cast<int>(std::size(kKinds))));

TEST_P(GpuFormatsOfAllKinds, ProductsAgree) {
  int variant = 33 * GetParam();
  const Kind& kind = kKinds[GetParam()];
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{7, 64}, {40, 352}, {200, 1440}}) {
    for (const int64_t tokens : {1, 3, 8, 13, 16, 17, 40, 64, 100, 128, 150}) {
      const Precision precision =
          tokens % 2 == 0 || tokens == 1 || tokens == 17 ? Precision::fast : Precision::exact;
      ++variant;
      const PartTwin first = part(kind, rows, cols);
      std::vector<WeightPart> host = {first.host}, device = {first.device};
      if (variant % 4 == 0) {
        const PartTwin second = part(variant % 8 == 0 ? Kind{DType::bf16, 0, 0} : kind, 11, cols);
        host.push_back(second.host);
        device.push_back(second.device);
      }
      const int64_t all = rows + (host.size() > 1 ? 11 : 0);
      const Twin x = random({tokens, cols}), out = nans({tokens, all}), bias = random({all});
      const bool with_bias = variant % 2 == 0;
      const Linear on_host{out.host, x.host, {host, all, cols}, with_bias ? bias.host : Tensor{}, precision};
      const Linear on_device{
          out.device, x.device, {device, all, cols}, with_bias ? bias.device : Tensor{}, precision};
      expect_entries_agree(on_host, on_device, out, 4e-6, 6e-3, describe(kind, rows, cols, tokens));
      forget();
    }
  }
}

TEST_P(GpuFormatsOfAllKinds, GatedProductsAgree) {
  const Kind& kind = kKinds[GetParam()];
  if (kind.largest_scale != 127) GTEST_SKIP() << "sums are beyond what is compared";
  for (const auto& [half, cols] : {std::pair<int64_t, int64_t>{9, 64}, {128, 704}, {70, 1440}}) {
    for (const int64_t tokens : {1, 5, 16, 30, 64, 128, 140}) {
      for (const bool together : {false, true}) {
        if (together && half % 64 != 0 && kind.block_rows > 1) continue;
        const PartTwin gate = part(kind, together ? 2 * half : half, cols), up = part(kind, half, cols);
        std::vector<WeightPart> host = {gate.host}, device = {gate.device};
        if (!together) {
          host.push_back(up.host);
          device.push_back(up.device);
        }
        const Twin x = random({tokens, cols}, DType::f32, 0.05f), out = nans({tokens, half}),
                   bias = random({2 * half});
        const bool with_bias = tokens != 5;
        const Weight host_weight{host, 2 * half, cols}, device_weight{device, 2 * half, cols};
        const GatedUp on_host{out.host, x.host, host_weight, with_bias ? bias.host : Tensor{}};
        const GatedUp on_device{out.device,       x.device,
                                device_weight,    with_bias ? bias.device : Tensor{},
                                Activation::silu, tokens == 30 ? Precision::exact : Precision::fast};
        expect_entries_agree(on_host, on_device, out, 1e-5, 2e-2, describe(kind, half, cols, tokens));
        forget();
      }
    }
  }
}

TEST_F(GpuFormats, ManyRowsOfASmallMatrixAgreeExactly) {
  for (const int64_t tokens : {9, 100, 512, 513}) {
    const Twin w = random({48, 264}, DType::bf16, 0.06f), x = random({tokens, 264}), out = nans({tokens, 48});
    const std::vector<WeightPart> host = {{w.host, {}}}, device = {{w.device, {}}};
    expect_entries_agree(Linear{out.host, x.host, {host, 48, 264}},
                         Linear{out.device, x.device, {device, 48, 264}}, out, 3e-6, 0,
                         "tokens " + std::to_string(tokens), tokens <= 512 ? 2 : 1);
  }
}

TEST_F(GpuFormats, RowsOfTablesAgree) {
  const std::vector<int32_t> ids = {3, 19, 0, 5};
  const auto device_ids = upload_span(ids);
  for (const Kind& kind : kKinds) {
    const PartTwin table = part(kind, 20, 96);
    const Twin out = nans({4, 96});
    expect_entries_agree(Embed{out.host, {{&table.host, 1}, 20, 96}, ids, 0},
                         Embed{out.device, {{&table.device, 1}, 20, 96}, device_ids, 0}, out, 1e-9, 0,
                         dtype_name(kind.type));
  }
}

}  // namespace
}  // namespace atom::ops
