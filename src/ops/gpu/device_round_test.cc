// Chains of ops on a GPU in which a product has its rows rounded by what makes them, against the CPU. Skipped
// on a machine without a GPU.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "ops/gpu/device_paged.h"
#include "ops/linear.h"
#include "ops/norm.h"

namespace atom::ops {
namespace {

class GpuRounded : public GpuPaged {
 protected:
  struct Stored {
    Twin w;
    std::vector<WeightPart> host, device;
    Weight on(Tensor Twin::*side) const {
      return {side == &Twin::host ? host : device, w.host.dim(0), w.host.dim(1)};
    }
  };
  Stored weight(int64_t rows, int64_t cols, DType dtype = DType::bf16) {
    Stored s{random({rows, cols}, dtype, 1 / std::sqrt(static_cast<float>(cols))), {}, {}};
    s.host = {{s.w.host, {}}};
    s.device = {{s.w.device, {}}};
    return s;
  }
};

TEST_F(GpuRounded, GateAndUpOfAFullBatchAgree) {
  for (const auto& [tokens, half, cols] :
       {std::array<int64_t, 3>{256, 14336, 72}, {129, 11200, 200}, {200, 13002, 64}, {255, 12288, 136}}) {
    const Stored w = weight(2 * half, cols);
    const Twin x = random({tokens, cols}), out = nans({tokens, half}), bias = random({2 * half});
    const bool with_bias = tokens % 2 == 0;
    const GatedUp host{out.host, x.host, w.on(&Twin::host), with_bias ? bias.host : Tensor{}};
    const GatedUp device{out.device,          x.device,
                         w.on(&Twin::device), with_bias ? bias.device : Tensor{},
                         Activation::silu,    Precision::fast};
    expect_entries_agree(host, device, out, 5e-6, 2e-2, "half " + std::to_string(half), 2);
    forget();
  }
}

// Norm, gate and up, down, and the norm after it.
TEST_F(GpuRounded, NormsAndProductsAgree) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const auto& [tokens, hidden, half] :
         {std::array<int64_t, 3>{100, 136, 200}, {300, 64, 72}, {1100, 64, 72}, {256, 72, 14336}}) {
      for (const bool spends : {false, true}) {
        const Stored up = weight(2 * half, hidden, dtype), down = weight(hidden, half, dtype);
        const Twin residual = random({tokens, hidden}), share = random({tokens, hidden}),
                   norm = random({hidden}), x = nans({tokens, hidden}), h = nans({tokens, half}),
                   y = nans({tokens, hidden}), out = nans({tokens, hidden});
        auto chain = [&](Stream& stream, Tensor Twin::*side) {
          run(stream, AddRmsNorm{x.*side, residual.*side, share.*side, norm.*side, 1e-5f});
          run(stream, GatedUp{h.*side, x.*side, up.on(side), {}, Activation::silu, Precision::fast, spends});
          run(stream, Linear{y.*side, h.*side, down.on(side), {}, Precision::fast, true});
          run(stream, AddRmsNorm{out.*side, residual.*side, y.*side, norm.*side, 1e-5f});
        };
        chain(cpu_, &Twin::host);
        chain(*gpu_, &Twin::device);
        const std::string what = std::string(dtype_name(dtype)) + " " + std::to_string(tokens) + " x " +
                                 std::to_string(hidden) + " x " + std::to_string(half);
        EXPECT_LT(error_of(out), 2e-2) << what;
        EXPECT_LT(error_of(residual), 1e-2) << what;
        if (!spends) {
          EXPECT_LT(error_of(x), 1e-5) << what << ": others may read it";
        }
        forget();
      }
    }
  }
}

TEST_F(GpuRounded, AttentionOfPromptsAndItsProductAgree) {
  const std::vector<std::pair<int32_t, int32_t>> lengths = {{150, 0}, {2, 40}, {133, 17}};
  for (const DType dtype : {DType::bf16, DType::f16, DType::f8e4m3}) {
    for (const int32_t dim : {64, 128, 256}) {
      PagedRows& p = paged(lengths, 16);
      p.device_batch.known = p.placed;
      constexpr int32_t kHeads = 4, kKvHeads = 2;
      const int64_t tokens = p.host_batch.tokens;
      const Twin k = random({p.blocks, kKvHeads, 16, dim}, dtype),
                 v = random({p.blocks, kKvHeads, 16, dim}, dtype),
                 q = random({tokens, (kHeads + 2 * kKvHeads) * dim}), attended = nans({tokens, kHeads * dim}),
                 out = nans({tokens, 72});
      const Stored w = weight(72, kHeads * dim, dim == 64 ? DType::f16 : DType::bf16);
      auto chain = [&](Stream& stream, Tensor Twin::*side, const AttentionBatch& batch) {
        run(stream, PagedAttention{.out = attended.*side,
                                   .q = q.*side,
                                   .k_cache = k.*side,
                                   .v_cache = v.*side,
                                   .batch = &batch,
                                   .heads = kHeads,
                                   .kv_heads = kKvHeads,
                                   .head_dim = dim,
                                   .scale = 1 / std::sqrt(static_cast<float>(dim))});
        run(stream, Linear{out.*side, attended.*side, w.on(side), {}, Precision::fast, true});
      };
      chain(cpu_, &Twin::host, p.host_batch);
      chain(*gpu_, &Twin::device, p.device_batch);
      EXPECT_LT(error_of(out), 1e-2) << dtype_name(dtype) << " dim " << dim;
      forget();
    }
  }
}

}  // namespace
}  // namespace atom::ops
