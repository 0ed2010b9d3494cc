// FP8 (E4M3) weights with scales per block, per row or per tensor, as DeepSeek, GLM and Qwen publish them
// (quant_method fp8) and as compressed-tensors and ModelOpt write them.
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

constexpr int64_t kMaxBlock = 1 << 16;

// What publishers leave in 16 bits even where no list says so. Real checkpoints say it by the stored type;
// dummy weights follow this.
const NamePatterns& usually_plain() {
  static const NamePatterns names({"embed_tokens", "lm_head", "gate", "router", "shared_expert_gate",
                                   "weights_proj", "eh_proj", "in_proj_a", "in_proj_b", "in_proj_ba"},
                                  "");
  return names;
}

class Fp8Format final : public WeightFormat {
 public:
  // Blocks of 0 x 0: the shape of the scales says whether they are per row or per tensor.
  Fp8Format(NamePatterns excluded, int64_t block_rows, int64_t block_cols)
      : WeightFormat(std::move(excluded)), block_rows_(block_rows), block_cols_(block_cols) {}

  void ignore_unread(const Scope& s) const override {
    for (const char* name : {"input_scale", "activation_scale"}) {
      s.ignore(std::string("*.") + name, "scales of FP8 activations, which are not quantised here");
    }
  }

 protected:
  std::vector<Source> sources(const Source& plain) const override {
    Source source = plain;
    std::vector<std::string> names = {plain.name + "_scale_inv", plain.name + "_scale"};
    if (block_rows_ == 0) std::swap(names[0], names[1]);  // what is usual for which
    source.scale = ScaleSource{std::move(names), block_rows_, block_cols_};
    if (!usually_plain().match(module_of(plain.name))) source.usual_type = DType::f8e4m3;
    return {source};
  }

 private:
  int64_t block_rows_, block_cols_;
};

std::shared_ptr<const WeightFormat> make(const ConfigReader& q, std::string_view key,
                                         const std::vector<int64_t>& block, NamePatterns excluded) {
  if (!block.empty() && block.size() != 2) {
    throw q.error(key, fmt::format("{} numbers; a block has rows and columns", block.size()));
  }
  return std::make_shared<Fp8Format>(std::move(excluded), block.empty() ? 0 : block[0],
                                     block.empty() ? 0 : block[1]);
}

// How one config group of compressed-tensors or ModelOpt stores weights.
std::vector<int64_t> group_block(const ConfigReader& group) {
  const std::optional<ConfigReader> w = group.section("weights");
  if (!w) throw group.error("weights", "missing: it says how the weights are stored");
  const int64_t bits = w->integer_or("num_bits", 8, 1, 64);
  const std::string type = w->text_or("type", "int");
  if (bits != 8 || type != "float") {
    throw w->error("type",
                   fmt::format("{}-bit {} weights are not supported; use a checkpoint in FP8, in MXFP4 as "
                               "GPT-OSS has it, or in bf16",
                               bits, type == "float" ? "float" : "integer"));
  }
  const std::vector<std::string> targets = group.texts("targets");
  if (!targets.empty() && targets != std::vector<std::string>{"Linear"}) {
    throw group.error("targets", "only groups for every \"Linear\" are supported");
  }
  const std::string strategy = w->text_or("strategy", "tensor");
  if (strategy == "tensor" || strategy == "channel") return {};
  if (strategy != "block") {
    throw w->error("strategy",
                   "FP8 weights have scales per \"tensor\", \"channel\" or \"block\"; others are not "
                   "supported");
  }
  const std::vector<int64_t> block = w->integers("block_structure", 1, kMaxBlock);
  if (block.size() != 2) throw w->error("block_structure", "must be [rows, columns]");
  return block;
}

}  // namespace

std::shared_ptr<const WeightFormat> make_fp8_format(const ConfigReader& q, NamePatterns excluded) {
  const std::string elements = q.text_or("fmt", "e4m3");
  if (elements != "e4m3" && elements != "float8_e4m3fn") {
    throw q.error("fmt", "only e4m3 is supported; use a checkpoint with E4M3 weights");
  }
  return make(q, "weight_block_size", q.integers("weight_block_size", 1, kMaxBlock), std::move(excluded));
}

std::shared_ptr<const WeightFormat> make_compressed_fp8_format(const ConfigReader& q, NamePatterns excluded) {
  const std::optional<ConfigReader> groups = q.section("config_groups");
  if (!groups) {
    if (q.text_or("quant_algo", "") == "FP8") return make(q, "quant_algo", {}, std::move(excluded));
    throw q.error("config_groups", "missing: it says how the weights are stored");
  }
  if (const std::optional<ConfigReader> sparsity = q.section("sparsity_config");
      sparsity && sparsity->text_or("format", "dense") != "dense") {
    throw sparsity->error("format", "sparse weights are not supported; use a dense checkpoint");
  }
  std::optional<std::vector<int64_t>> block;
  for (const auto& [name, value] : groups->json().items()) {
    const std::optional<ConfigReader> group = groups->section(name);
    if (!group) continue;
    const std::vector<int64_t> here = group_block(*group);
    if (block && *block != here)
      throw groups->error(name, "groups stored in different ways are not supported");
    block = here;
  }
  if (!block) throw q.error("config_groups", "empty: it says how the weights are stored");
  return make(q, "config_groups", *block, std::move(excluded));
}

}  // namespace atom
