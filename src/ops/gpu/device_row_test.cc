// Products of one row with the norms before them and the sums after them, which GPU entries may do as one:
// whole chains against the CPU.
#include <gtest/gtest.h>

#include <array>

#include "ops/gpu/device_test.h"
#include "ops/linear.h"
#include "ops/moe.h"
#include "ops/norm.h"

namespace atom::ops {
namespace {

class GpuRow : public GpuOps {
 protected:
  struct Matrix {
    std::vector<WeightPart> host, device;
    int64_t rows, cols;
    Weight on_host() const { return {host, rows, cols}; }
    Weight on_device() const { return {device, rows, cols}; }
  };

  // bf16, or E4M3 with a scale for 128 x 128.
  Matrix matrix(DType type, int64_t rows, int64_t cols) {
    if (type == DType::bf16) {
      const Twin w = random({rows, cols}, type, 1 / std::sqrt(static_cast<float>(cols)));
      return {{{w.host, {}}}, {{w.device, {}}}, rows, cols};
    }
    auto& bytes = memory_.emplace_back(static_cast<size_t>(rows * cols));
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng_() % 0x70 | (rng_() % 2) << 7);
    const int64_t down = (rows + 127) / 128, across = (cols + 127) / 128;
    std::vector<float> values(static_cast<size_t>(down * across));
    for (float& v : values) v = 1e-5f * static_cast<float>(1 + rng_() % 100);
    const Twin scales = twin(values, DType::f32, {down, across});
    auto part = [&](void* data, const Tensor& scale, Device device) {
      return WeightPart{make_tensor(data, type, {rows, cols}, device), {scale, 128, 128, 0, 0}};
    };
    return {{part(bytes.data(), scales.host, {})},
            {part(upload(bytes.data(), rows * cols), scales.device, device_)},
            rows,
            cols};
  }

  void run_both(const AddRmsNorm& host, const AddRmsNorm& device) {
    run(cpu_, host);
    run(*gpu_, device);
  }
};

// A layer: output product, sum and norm, gated product, down product, sum and norm, next product.
TEST_F(GpuRow, ChainsOfALayerAgree) {
  for (const DType type : {DType::bf16, DType::f8e4m3}) {
    for (const auto& [hidden, inter] :
         {std::pair<int64_t, int64_t>{64, 48}, {384, 1008}, {2880, 2896}, {4096, 14336}}) {
      for (const bool norm_read_elsewhere : {false, true}) {
        const Matrix out_w = matrix(type, hidden, hidden), gated_w = matrix(type, 2 * inter, hidden),
                     down_w = matrix(type, hidden, inter), next_w = matrix(type, 96, hidden);
        const Twin residual = random({1, hidden}), x = random({1, hidden}), add = nans({1, hidden}),
                   normed = nans({1, hidden}), inner = nans({1, inter}), next = nans({1, 96}),
                   weight = random({hidden}), bias = random({hidden});
        const Twin copy = nans({1, hidden}), ones = twin(std::vector<float>(hidden, 1), DType::f32, {hidden});
        auto norm = [&](bool first) {
          run_both({normed.host, residual.host, add.host, weight.host, 1e-6f, first ? 0.0f : 1.0f},
                   {normed.device, residual.device, add.device, weight.device, 1e-6f, first ? 0.0f : 1.0f});
        };
        constexpr Precision kFast = Precision::fast;
        run(cpu_, Linear{add.host, x.host, out_w.on_host(), bias.host, kFast});
        run(*gpu_, Linear{add.device, x.device, out_w.on_device(), bias.device, kFast});
        norm(true);
        if (norm_read_elsewhere) {
          run(cpu_, RmsNorm{copy.host, normed.host, ones.host, 1e-6f});
          run(*gpu_, RmsNorm{copy.device, normed.device, ones.device, 1e-6f});
        }
        run(cpu_, GatedUp{inner.host, normed.host, gated_w.on_host(), {}, Activation::silu, kFast});
        run(*gpu_, GatedUp{inner.device, normed.device, gated_w.on_device(), {}, Activation::silu, kFast});
        const double norm_error = error_of(normed), inner_error = error_of(inner);
        run(cpu_, Linear{add.host, inner.host, down_w.on_host(), {}, kFast});
        run(*gpu_, Linear{add.device, inner.device, down_w.on_device(), {}, kFast});
        norm(false);
        run(cpu_, Linear{next.host, normed.host, next_w.on_host(), {}, kFast});
        run(*gpu_, Linear{next.device, normed.device, next_w.on_device(), {}, kFast});
        const std::string what = std::string(dtype_name(type)) + " " + std::to_string(hidden) + " " +
                                 std::to_string(inter) + (norm_read_elsewhere ? " read elsewhere" : "");
        EXPECT_LT(error_of(next), 1e-2) << what;  // the CPU may round too
        EXPECT_LT(error_of(residual), 1e-2) << what;
        EXPECT_LT(norm_error, 1e-2) << what;
        EXPECT_LT(inner_error, 1e-2) << what;
        memory_.clear();
        buffers_.clear();
      }
    }
  }
}

// Of many rows, the activation may be rounded for the product that reads it.
TEST_F(GpuRow, GatedProductsOfManyRowsAndTheirReadersAgree) {
  for (const auto& [tokens, hidden, inter] :
       {std::array<int64_t, 3>{512, 64, 96}, {700, 72, 104}, {600, 64, 100}, {513, 264, 1000}}) {
    for (const bool read_as_floats : {false, true}) {
      const Matrix gated_w = matrix(DType::bf16, 2 * inter, hidden),
                   down_w = matrix(DType::bf16, hidden, inter);
      const Twin x = random({tokens, hidden}), inner = nans({tokens, inter}), out = nans({tokens, hidden});
      constexpr Precision kFast = Precision::fast;
      run(cpu_, GatedUp{inner.host, x.host, gated_w.on_host(), {}, Activation::silu, kFast});
      run(*gpu_, GatedUp{inner.device, x.device, gated_w.on_device(), {}, Activation::silu, kFast});
      if (read_as_floats) {
        EXPECT_LT(error_of(inner), 1e-2);
      }
      run(cpu_, Linear{out.host, inner.host, down_w.on_host(), {}, kFast});
      run(*gpu_, Linear{out.device, inner.device, down_w.on_device(), {}, kFast});
      EXPECT_LT(error_of(out), 1e-2) << tokens << " " << hidden << " " << inner.host.dim(1) << read_as_floats;
      memory_.clear();
      buffers_.clear();
    }
  }
}

// The gate of a shared expert scales what the product before it gives, before it is added to the residual.
TEST_F(GpuRow, AGateAndANormAfterAProductAgree) {
  for (const DType type : {DType::bf16, DType::f8e4m3}) {
    for (const bool read_elsewhere : {false, true}) {
      constexpr int64_t kHidden = 320, kInter = 528;
      const Matrix down = matrix(type, kHidden, kInter);
      const Twin x = random({1, kInter}), y = nans({1, kHidden}), logit = random({1, 1}),
                 residual = random({1, kHidden}), normed = nans({1, kHidden}), weight = random({kHidden});
      run(cpu_, Linear{y.host, x.host, down.on_host(), {}, Precision::fast});
      run(*gpu_, Linear{y.device, x.device, down.on_device(), {}, Precision::fast});
      run(cpu_, SigmoidScale{y.host, logit.host});
      run(*gpu_, SigmoidScale{y.device, logit.device});
      if (read_elsewhere) {
        EXPECT_LT(error_of(y), 1e-2);
      }
      run_both({normed.host, residual.host, y.host, weight.host, 1e-6f, 0},
               {normed.device, residual.device, y.device, weight.device, 1e-6f, 0});
      EXPECT_LT(error_of(normed), 1e-2) << dtype_name(type) << read_elsewhere;
      EXPECT_LT(error_of(residual), 1e-2) << dtype_name(type) << read_elsewhere;
    }
  }
}

// Of several rows, the norm may round for the product that reads it.
TEST_F(GpuRow, NormsOfManyRowsAndTheirReadersAgree) {
  for (const auto& [tokens, hidden] :
       {std::array<int64_t, 2>{2, 64}, {9, 264}, {130, 4096}, {70, 8200}, {33, 100}, {17, 30}}) {
    const Matrix w = matrix(DType::bf16, 72, hidden);
    for (const bool adds : {false, true}) {
      const Twin residual = random({tokens, hidden}), add = random({tokens, hidden}),
                 normed = nans({tokens, hidden}), out = nans({tokens, 72}), weight = random({hidden});
      const Tensor none;
      run_both({normed.host, residual.host, adds ? add.host : none, weight.host, 1e-6f, 1},
               {normed.device, residual.device, adds ? add.device : none, weight.device, 1e-6f, 1});
      run(cpu_, Linear{out.host, normed.host, w.on_host(), {}, Precision::fast});
      run(*gpu_, Linear{out.device, normed.device, w.on_device(), {}, Precision::fast});
      const std::string what = std::to_string(tokens) + "x" + std::to_string(hidden) + (adds ? " adds" : "");
      EXPECT_LT(error_of(out), 1e-2) << what;
      EXPECT_LT(error_of(normed), 1e-5) << what;
      EXPECT_LT(error_of(residual), 1e-6) << what;
    }
  }
}

// A norm that no product reads, and a product whose sum nobody adds.
TEST_F(GpuRow, WorkThatNobodyTakesOverIsDone) {
  const Matrix w = matrix(DType::bf16, 64, 128);
  const Twin residual = random({1, 128}), out = nans({1, 128}), weight = random({128}), sum = nans({1, 64});
  run_both({out.host, residual.host, {}, weight.host, 1e-6f, 0},
           {out.device, residual.device, {}, weight.device, 1e-6f, 0});
  EXPECT_LT(error_of(out), 1e-5);
  run(cpu_, Linear{sum.host, out.host, w.on_host(), {}, Precision::fast});
  run(*gpu_, Linear{sum.device, out.device, w.on_device(), {}, Precision::fast});
  EXPECT_LT(error_of(sum), 1e-2);
}

}  // namespace
}  // namespace atom::ops
