#include "engine/weight_sizes.h"

#include <algorithm>

#include "base/error.h"
#include "nn/weight_format.h"
#include "runtime/anatomy.h"

namespace atom {
namespace {

// Tensors that hold a weight NAME or belong to it are called NAME and one of these.
constexpr const char* kStorageSuffixes[] = {"",        "_scale_inv", "_scale", "_scale_2",   "_blocks",
                                            "_scales", "_packed",    "_shape", "_zero_point"};

// The config's way to store weights; null: plain numbers.
Json quantization_of(const ModelFiles& files) {
  if (const auto q = files.config.find("quantization_config"); q != files.config.end() && q->is_object())
    return *q;
  if (files.hf_quant_config.is_object()) {
    const auto q = files.hf_quant_config.find("quantization");
    if (q != files.hf_quant_config.end() && q->is_object()) return *q;
  }
  return {};
}

// Of an element as it is stored, with its share of the scales: a byte each beside E2M1, else f32.
double quantized_bytes(const Source& source, const Piece& piece) {
  const int64_t pair = dtype_bytes(*source.usual_type, 2);
  const ScaleSource& scale = *source.scale;
  const double sharing =
      static_cast<double>(scale.block_rows > 0 ? scale.block_rows * scale.block_cols : piece.cols);
  return static_cast<double>(pair) / 2 + (source.nibble_group > 0 ? 1 : 4) / sharing;
}

bool is_ever_quantized(Component component) {
  return component != Component::vocabulary && component != Component::norms && component != Component::gate;
}

}  // namespace

WeightSizes::WeightSizes(const ModelFiles& files, const Checkpoint* checkpoint) : checkpoint_(checkpoint) {
  const ConfigReader config(files.config);
  plain_ = static_cast<double>(dtype_bytes(read_dtype(config).value_or(DType::bf16), 1));
  if (checkpoint != nullptr) return;
  const Json quantization = quantization_of(files);
  if (quantization.is_null()) return;
  const ConfigReader q(quantization, "config.json: quantization_config");
  if (q.text_or("quant_algo", "") == "NVFP4") {
    nvfp4_ = 0.5 + 1.0 / 16;
    excluded_ = excluded_modules(q);
    return;
  }
  try {
    format_ = make_weight_format(q);
  } catch (const Error& e) {
    throw invalid(
        "{}; to plan such weights, give the whole folder: their size is only known from their files",
        e.message());
  }
}

std::optional<double> WeightSizes::from_headers(const Source& source, const Piece& piece) const {
  int64_t bytes = 0;
  for (const char* suffix : kStorageSuffixes) {
    if (const StoredTensor* stored = checkpoint_->find(source.name + suffix)) bytes += stored->bytes;
  }
  if (bytes == 0) return std::nullopt;
  const int64_t rows = source.stored_rows > 0 ? source.stored_rows : piece.rows;
  const int64_t slices = source.index >= 0 ? std::max<int64_t>(1, source.slices) : 1;
  return static_cast<double>(bytes) / static_cast<double>(rows * slices) / static_cast<double>(piece.cols);
}

double WeightSizes::from_config(const ParamEntry& param, const Piece& piece) const {
  if (!is_ever_quantized(component_of(param.path))) return plain_;
  if (nvfp4_ > 0)
    return excluded_.match(WeightFormat::module_of(piece.any_of.front().name)) ? plain_ : nvfp4_;
  if (format_ == nullptr) return plain_;
  Piece stored = piece;
  format_->apply(stored);
  for (const Source& source : stored.any_of) {
    if (source.usual_type) return quantized_bytes(source, piece);
  }
  return plain_;
}

double WeightSizes::bytes_per_element(const ParamEntry& param, const Piece& piece) const {
  if (param.kind == ParamEntry::Kind::vector) return 4;  // widened when it is loaded
  if (checkpoint_ == nullptr) return from_config(param, piece);
  for (const Source& source : piece.any_of) {
    if (const auto bytes = from_headers(source, piece)) return *bytes;
  }
  throw invalid("{}: missing; atom check lists all that do not fit the model", piece.any_of.front().name);
}

}  // namespace atom
