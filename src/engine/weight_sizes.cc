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

std::string text_of(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

// Scales of f32, one per block of weights.
double block_scale_bytes(const Json& quantization) {
  const auto block = quantization.find("weight_block_size");
  if (block == quantization.end() || !block->is_array() || block->size() != 2) return 0;
  double weights = 1;
  for (const Json& side : *block)
    weights *= side.is_number_integer() ? std::max<int64_t>(1, side.get<int64_t>()) : 1;
  return 4 / weights;
}

bool is_ever_quantized(Component component) {
  return component != Component::vocabulary && component != Component::norms && component != Component::gate;
}

}  // namespace

WeightSizes::WeightSizes(const ModelFiles& files, const Checkpoint* checkpoint) : checkpoint_(checkpoint) {
  const ConfigReader config(files.config);
  plain_ = static_cast<double>(dtype_bytes(read_dtype(config).value_or(DType::bf16), 1));
  quantized_ = plain_;
  if (checkpoint != nullptr) return;
  Json quantization;
  std::string method;
  if (const auto q = files.config.find("quantization_config"); q != files.config.end() && q->is_object()) {
    quantization = *q;
    method = text_of(quantization, "quant_method");
    if (method.empty() || method == "modelopt") method = text_of(quantization, "quant_algo");
  } else if (files.hf_quant_config.is_object()) {
    const auto q2 = files.hf_quant_config.find("quantization");
    if (q2 != files.hf_quant_config.end() && q2->is_object()) quantization = *q2;
    method = text_of(quantization, "quant_algo");
  }
  if (quantization.is_null()) return;
  if (method == "fp8" || method == "FP8") {
    quantized_ = 1 + block_scale_bytes(quantization);
  } else if (method == "mxfp4") {
    quantized_ = 0.5 + 1.0 / 32;
  } else if (method == "NVFP4") {
    quantized_ = 0.5 + 1.0 / 16;
  } else {
    throw invalid(
        "{}: the size of weights stored as \"{}\" is only known from their files; plan needs the whole "
        "folder",
        files.root.string(), method);
  }
  excluded_ = excluded_modules(ConfigReader(quantization, "config.json: quantization_config"));
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
  if (quantized_ == plain_ || !is_ever_quantized(component_of(param.path))) return plain_;
  return excluded_.match(WeightFormat::module_of(piece.any_of.front().name)) ? plain_ : quantized_;
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
