// FP8 (E4M3) weights with scales per block, per row or per tensor, as DeepSeek, GLM and Qwen publish them
// (quant_method fp8). compressed-tensors, ModelOpt and AMD Quark write the same tensors.
//
//   X.weight [N, K] F8_E4M3, X.weight_scale_inv [ceil(N / rows), ceil(K / cols)]: a factor, despite its name
//   X.weight_scale: the same per block, [N, 1] or [N] per row, or one value
//   stacked experts: X [E, N, K], X_scale_inv [E, ...]
//
// Scales that checkpoints hold for activations are not used: activations stay in float32 or bfloat16.
#include <fmt/core.h>

#include "nn/weight_format.h"

namespace atom {
namespace {

class Fp8Format final : public WeightFormat {
 public:
  Fp8Format(NamePatterns excluded, int64_t block_rows, int64_t block_cols)
      : WeightFormat(std::move(excluded)), block_rows_(block_rows), block_cols_(block_cols) {}

  void ignore_unread(const Scope& s) const override { ignore_activation_scales(s); }

 protected:
  std::vector<Source> sources(const Source& plain) const override {
    return {fp8_source(plain, block_rows_, block_cols_)};
  }

 private:
  int64_t block_rows_, block_cols_;
};

}  // namespace

Source fp8_source(const Source& plain, int64_t block_rows, int64_t block_cols) {
  Source source = plain;
  source.scale = ScaleSource{{plain.name + "_scale_inv", plain.name + "_scale"}, block_rows, block_cols};
  if (block_rows == 0) std::swap(source.scale->any_of[0], source.scale->any_of[1]);
  if (!usually_plain(plain.name)) source.usual_type = DType::f8e4m3;
  return source;
}

std::shared_ptr<const WeightFormat> make_fp8_in_blocks(NamePatterns excluded, int64_t block_rows,
                                                       int64_t block_cols) {
  return std::make_shared<Fp8Format>(std::move(excluded), block_rows, block_cols);
}

std::shared_ptr<const WeightFormat> make_fp8_format(const ConfigReader& q, NamePatterns excluded) {
  const std::string elements = q.text_or("fmt", "e4m3");
  if (elements != "e4m3" && elements != "float8_e4m3fn") {
    throw q.error("fmt", "only e4m3 is supported; use a checkpoint with E4M3 weights");
  }
  const std::vector<int64_t> block = q.integers("weight_block_size", 1, kMaxScaleBlock);
  if (block.empty()) return make_fp8_in_blocks(std::move(excluded), 0, 0);
  if (block.size() != 2) {
    throw q.error("weight_block_size", fmt::format("{} numbers; a block has rows and columns", block.size()));
  }
  return make_fp8_in_blocks(std::move(excluded), block[0], block[1]);
}

}  // namespace atom
