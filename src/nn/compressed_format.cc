// What compressed-tensors writes for every Linear: FP8 as in fp8_format.cc (ModelOpt's FP8 is read here,
// too), or MXFP4 (format mxfp4-pack-quantized).
//
//   X.weight_packed [N, K / 2] U8: E2M1, two values a byte, low four bits first
//   X.weight_scale [N, K / 32] U8: E8M0
//
// How activations were quantised is not used: they stay in float32 or bfloat16.
#include <fmt/core.h>

#include "nn/weight_format.h"
#include "tensor/quantise.h"

namespace atom {
namespace {

constexpr int64_t kNvfp4Group = 16;
constexpr const char* kMxfp4 = "mxfp4-pack-quantized";

class PackedMxfp4Format final : public WeightFormat {
 public:
  using WeightFormat::WeightFormat;

 protected:
  std::vector<Source> sources(const Source& plain) const override {
    if (plain.index >= 0) return {plain};  // experts are packed one by one
    return {mxfp4_source(plain, plain.name + "_packed"), plain};
  }
};

// How one config group stores weights.
struct Group {
  bool mxfp4 = false;
  std::vector<int64_t> block;  // of FP8; empty: scales per row or tensor
  bool operator==(const Group&) const = default;
};

Group read_mxfp4(const ConfigReader& q, const ConfigReader& group, const ConfigReader& w) {
  const std::string format = group.text_or("format", q.text_or("format", kMxfp4));
  const std::string strategy = w.text_or("strategy", "group");
  const int64_t size = w.integer_or("group_size", kMxfp4Group, -1);
  if (strategy == "tensor_group" || size == kNvfp4Group || format == "nvfp4-pack-quantized") {
    throw unsupported_weights(w, "type", "NVFP4 (E2M1 with E4M3 scales per 16 columns)");
  }
  if (strategy != "group" || size != kMxfp4Group) {
    throw unsupported_weights(w, "strategy",
                              fmt::format("4-bit floats with scales per {} of {}", quoted(strategy), size));
  }
  if (format != kMxfp4) throw unsupported_weights(q, "format", "4-bit floats in " + quoted(format));
  return {.mxfp4 = true};
}

Group read_group(const ConfigReader& q, const ConfigReader& group) {
  const std::optional<ConfigReader> w = group.section("weights");
  if (!w) throw group.error("weights", "missing: it says how the weights are stored");
  const std::vector<std::string> targets = group.texts("targets");
  if (!targets.empty() && targets != std::vector<std::string>{"Linear"}) {
    throw group.error("targets", "only groups for every \"Linear\" are supported");
  }
  const int64_t bits = w->integer_or("num_bits", 8, 1, 64);
  const std::string type = w->text_or("type", "int");
  if (bits == 4 && type == "float") return read_mxfp4(q, group, *w);
  if (bits != 8 || type != "float") {
    throw unsupported_weights(*w, "type",
                              fmt::format("{}-bit {}s", bits, type == "float" ? "float" : "integer"));
  }
  const std::string strategy = w->text_or("strategy", "tensor");
  if (strategy == "tensor" || strategy == "channel") return {};
  if (strategy != "block") {
    throw w->error("strategy",
                   "FP8 weights have scales per \"tensor\", \"channel\" or \"block\"; others are not "
                   "supported");
  }
  const std::vector<int64_t> block = w->integers("block_structure", 1, kMaxScaleBlock);
  if (block.size() != 2) throw w->error("block_structure", "must be [rows, columns]");
  return {.block = block};
}

void refuse_changed_weights(const ConfigReader& q) {
  if (const std::optional<ConfigReader> sparsity = q.section("sparsity_config");
      sparsity && sparsity->text_or("format", "dense") != "dense") {
    throw sparsity->error("format", "sparse weights are not supported; use a dense checkpoint");
  }
  const std::optional<ConfigReader> transform = q.section("transform_config");
  if (!transform) return;
  if (const Json* groups = transform->find("config_groups"); groups != nullptr && !groups->empty()) {
    throw transform->error("config_groups",
                           "rotated weights are not supported; use a checkpoint without transforms");
  }
}

}  // namespace

std::shared_ptr<const WeightFormat> make_compressed_format(const ConfigReader& q, NamePatterns excluded) {
  const std::optional<ConfigReader> groups = q.section("config_groups");
  if (!groups) {
    if (q.text_or("quant_algo", "") == "FP8") return make_fp8_in_blocks(std::move(excluded), 0, 0);
    throw q.error("config_groups", "missing: it says how the weights are stored");
  }
  refuse_changed_weights(q);
  std::optional<Group> all;
  for (const auto& [name, value] : groups->json().items()) {
    const std::optional<ConfigReader> group = groups->section(name);
    if (!group) continue;
    const Group here = read_group(q, *group);
    if (all && *all != here) {
      throw groups->error(name, "groups stored in different ways are not supported");
    }
    all = here;
  }
  if (!all) throw q.error("config_groups", "empty: it says how the weights are stored");
  if (all->mxfp4) return std::make_shared<PackedMxfp4Format>(std::move(excluded));
  const bool blocks = !all->block.empty();
  return make_fp8_in_blocks(std::move(excluded), blocks ? all->block[0] : 0, blocks ? all->block[1] : 0);
}

}  // namespace atom
