// MXFP4 as GPT-OSS stores it: the stacked experts in E2M1 with one power of two per 32 columns, everything
// else as it was.
//
//   X_blocks [E, N, K / 32, 16] U8: two values a byte, low four bits first
//   X_scales [E, N, K / 32] U8: E8M0
//
// Rows stand as the kernels want them, [out, in], though the plain tensor X of the same experts is [E, in,
// out]. Other publishers store whole matrices (mxfp4_source), of which each expert is one.
#include "nn/weight_format.h"
#include "tensor/quantise.h"

namespace atom {
namespace {

class Mxfp4Format final : public WeightFormat {
 public:
  using WeightFormat::WeightFormat;

 protected:
  std::vector<Source> sources(const Source& plain) const override {
    if (plain.index < 0) return {plain};
    Source source = plain;
    source.name = plain.name + "_blocks";
    source.transposed = false;
    source.nibble_group = kMxfp4Group;
    source.nibbles_in_groups = true;
    source.scale = ScaleSource{{plain.name + "_scales"}, 1, kMxfp4Group};
    source.usual_type = DType::f4e2m1x2;
    return {source, plain};
  }
};

}  // namespace

Source mxfp4_source(const Source& plain, const std::string& name) {
  Source source = plain;
  source.name = name;
  source.nibble_group = kMxfp4Group;
  source.scale = ScaleSource{{plain.name + "_scale"}, 1, kMxfp4Group};
  if (!usually_plain(plain.name)) source.usual_type = DType::f4e2m1x2;
  return source;
}

std::shared_ptr<const WeightFormat> make_mxfp4_format(const ConfigReader&, NamePatterns excluded) {
  return std::make_shared<Mxfp4Format>(std::move(excluded));
}

}  // namespace atom
