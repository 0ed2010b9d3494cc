#include "runtime/quantisation.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/run_jobs.h"
#include "nn/weight_format.h"
#include "ops/cpu/dequant.h"
#include "runtime/account.h"
#include "tensor/quantise.h"

namespace atom {
namespace {

constexpr int64_t kBandRows = 128;  // rows that one job reads; a multiple of every block's

Json fp8_config() {
  return {{"quant_method", "fp8"},
          {"fmt", "e4m3"},
          {"activation_scheme", "dynamic"},
          {"weight_block_size", {128, 128}}};
}

// As compressed-tensors writes it: every Linear.
Json linears_config(const char* format, Json weights, Json activations) {
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"quantization_status", "compressed"},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"format", format},
              {"weights", std::move(weights)},
              {"input_activations", std::move(activations)}}}}}};
}

Json numbers(int bits, const char* strategy, bool dynamic) {
  return {{"num_bits", bits},
          {"type", "float"},
          {"strategy", strategy},
          {"symmetric", true},
          {"dynamic", dynamic}};
}

// With activations that whoever multiplies in FP8 rounds row by row.
Json fp8_channel_config() {
  return linears_config("float-quantized", numbers(8, "channel", false), numbers(8, "token", true));
}

Json packed_mxfp4_config() {
  Json weights = numbers(4, "group", false);
  weights["group_size"] = kMxfp4Group;
  weights["scale_dtype"] = "torch.uint8";
  Json config = linears_config("mxfp4-pack-quantized", std::move(weights), nullptr);
  config["ignore"] = {"kv_b_proj"};  // a few bytes that every product of latent attention needs
  return config;
}

Json mxfp4_config() { return {{"quant_method", "mxfp4"}}; }

// Of several with one name, the first that has a use for one of the model's matrices.
struct Target {
  const char* name;
  Json (*config)();
  const char* left;  // key of the list of modules that stay as they are
};
constexpr Target kTargets[] = {{"fp8", fp8_config, "modules_to_not_convert"},
                               {"fp8_channel", fp8_channel_config, "ignore"},
                               {"mxfp4", mxfp4_config, "modules_to_not_convert"},  // stacked experts
                               {"mxfp4", packed_mxfp4_config, "ignore"}};

bool is_plain(const std::optional<DType>& dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

// How the format stores the matrix that lies at `plain`; empty: as it is.
std::optional<Source> quantised_source(const WeightFormat& format, const Piece& piece, const Source& plain) {
  Piece alone = piece;
  alone.any_of = {plain};
  format.apply(alone);
  const Source& source = alone.any_of.front();
  const bool fits = source.usual_type && source.scale &&
                    piece.cols % dtype_info(*source.usual_type).block == 0 &&
                    (source.nibble_group == 0 || piece.cols % source.nibble_group == 0) &&
                    // Rows that alternate cannot share scales; elements of FP8 stand as the plain ones do.
                    (source.step == 1 || source.scale->block_rows <= 1) && !source.transposed;
  return fits ? std::optional(source) : std::nullopt;
}

StoredTensor stored(std::string name, DType dtype, const char* dtype_name, std::vector<int64_t> shape) {
  StoredTensor tensor{
      .name = std::move(name), .dtype = dtype, .dtype_name = dtype_name, .shape = std::move(shape)};
  tensor.bytes = dtype_bytes(dtype, shape_elements(tensor.shape).value());
  return tensor;
}

QuantisedMatrix quantised_matrix(const Piece& piece, const Source& plain, const StoredTensor& tensor,
                                 const Source& source) {
  QuantisedMatrix m;
  m.plain = tensor;
  m.transposed = plain.transposed;
  m.slices = plain.index >= 0 ? tensor.shape.front() : 1;
  m.rows = plain.stored_rows > 0 ? plain.stored_rows : piece.rows;
  m.cols = piece.cols;
  m.block_rows = std::max<int64_t>(1, source.scale->block_rows);  // 0 x 0: one for each row
  m.block_cols = source.scale->block_rows > 0 ? source.scale->block_cols : m.cols;
  m.type = *source.usual_type;
  std::vector<int64_t> elements = {m.rows, m.cols};
  std::vector<int64_t> scales = {(m.rows + m.block_rows - 1) / m.block_rows,
                                 (m.cols + m.block_cols - 1) / m.block_cols};
  if (source.nibble_group > 0) elements = {m.rows, m.cols / 2};
  if (source.nibbles_in_groups) elements = {m.rows, m.cols / source.nibble_group, source.nibble_group / 2};
  if (plain.index >= 0) {
    elements.insert(elements.begin(), m.slices);
    scales.insert(scales.begin(), m.slices);
  }
  const bool bytes = source.nibble_group > 0;
  m.elements = stored(source.name, bytes ? DType::u8 : m.type, bytes ? "U8" : "F8_E4M3", std::move(elements));
  m.scales = stored(source.scale->any_of.front(), bytes ? DType::u8 : DType::f32, bytes ? "U8" : "F32",
                    std::move(scales));
  return m;
}

// Rows `first` to `first + count` of a slice, widened.
void read_band(const Checkpoint& checkpoint, const QuantisedMatrix& m, int64_t slice, int64_t first,
               int64_t count, std::vector<float>& band) {
  const DType dtype = *m.plain.dtype;
  const std::byte* data = checkpoint.mapped(m.plain) + dtype_bytes(dtype, slice * m.rows * m.cols);
  band.resize(static_cast<size_t>(count * m.cols));
  if (!m.transposed) {
    ops::dequantize_row(dtype, data + dtype_bytes(dtype, first * m.cols), band.data(), count * m.cols);
    return;
  }
  std::vector<float> column(static_cast<size_t>(count));
  for (int64_t c = 0; c < m.cols; ++c) {
    ops::dequantize_row(dtype, data + dtype_bytes(dtype, c * m.rows + first), column.data(), count);
    for (int64_t r = 0; r < count; ++r)
      band[static_cast<size_t>(r * m.cols + c)] = column[static_cast<size_t>(r)];
  }
}

void quantise_band(const QuantisedBytes& to, int64_t slice, int64_t first, int64_t count, const float* band) {
  const QuantisedMatrix& m = *to.matrix;
  const int64_t row = slice * m.rows + first, across = (m.cols + m.block_cols - 1) / m.block_cols;
  auto* elements = reinterpret_cast<uint8_t*>(to.elements + dtype_bytes(m.type, row * m.cols));
  if (m.type == DType::f4e2m1x2) {
    quantise_mxfp4(band, count, m.cols, m.cols, elements,
                   reinterpret_cast<uint8_t*>(to.scales) + row * across);
    return;
  }
  const int64_t down = (m.rows + m.block_rows - 1) / m.block_rows;
  float* scales = reinterpret_cast<float*>(to.scales) + (slice * down + first / m.block_rows) * across;
  for (int64_t r = 0; r < count; r += m.block_rows, scales += across) {
    quantise_f8e4m3(band + r * m.cols, std::min(m.block_rows, count - r), m.cols, m.cols, m.block_cols,
                    elements + r * m.cols, scales);
  }
}

// Empty: the format stores none of the model's matrices.
std::optional<Quantisation> plan_for(const Target& target, const ModelTables& tables,
                                     const Checkpoint* checkpoint) {
  Quantisation result{.config = target.config()};
  const auto format = make_weight_format(ConfigReader(result.config, "quantization_config"));
  std::set<std::string> quantised, left;  // names of plain tensors
  for (const ParamEntry& param : tables.params) {
    if (param.kind != ParamEntry::Kind::matrix) continue;
    for (const Piece& piece : param.pieces) {
      const PieceAccount found = checkpoint != nullptr ? resolve(param, piece, *checkpoint) : PieceAccount{};
      if (checkpoint != nullptr && (!found.problem.empty() || !is_plain(found.stored->dtype))) continue;
      const Source& plain = checkpoint != nullptr ? *found.source : piece.any_of.front();
      const std::optional<Source> source =
          param.lookup_only ? std::nullopt : quantised_source(*format, piece, plain);
      if (!source) {
        left.insert(plain.name);
        continue;
      }
      if (!quantised.insert(plain.name).second || checkpoint == nullptr) continue;
      result.matrices.push_back(quantised_matrix(piece, plain, *found.stored, *source));
    }
  }
  if (quantised.empty()) return std::nullopt;
  // Other matrices in the files belong to parts that are not run.
  if (checkpoint != nullptr) {
    for (const StoredTensor& tensor : checkpoint->tensors()) {
      if (tensor.shape.size() > 1) left.insert(tensor.name);
    }
  }
  Json excluded = Json::array();
  for (const std::string& tensor : left) {
    if (!quantised.contains(tensor)) excluded.push_back(WeightFormat::module_of(tensor));
  }
  result.config[target.left] = std::move(excluded);
  return result;
}

}  // namespace

std::vector<std::string> quantisation_targets() {
  std::vector<std::string> names;
  for (const Target& target : kTargets) {
    if (names.empty() || names.back() != target.name) names.emplace_back(target.name);
  }
  return names;
}

Quantisation plan_quantisation(const ModelTables& tables, const Checkpoint* checkpoint,
                               const std::string& name) {
  for (const Target& target : kTargets) {
    if (target.name != name) continue;
    if (std::optional<Quantisation> found = plan_for(target, tables, checkpoint)) return *std::move(found);
  }
  throw invalid("{}: the model has no matrix that is stored so; use another of {}", name,
                fmt::join(quantisation_targets(), ", "));
}

void quantise(const Checkpoint& checkpoint, const std::vector<QuantisedBytes>& matrices, int threads,
              const JobProgress::Report& report) {
  struct Band {
    const QuantisedBytes* to;
    int64_t slice, first, count;
  };
  std::vector<Band> bands;
  int64_t total = 0;
  for (const QuantisedBytes& to : matrices) {
    total += to.matrix->plain.bytes;
    for (int64_t slice = 0; slice < to.matrix->slices; ++slice) {
      for (int64_t r = 0; r < to.matrix->rows; r += kBandRows)
        bands.push_back({&to, slice, r, std::min(kBandRows, to.matrix->rows - r)});
    }
  }
  JobProgress progress(report, total);
  run_jobs(bands, threads, [&](const Band& band) {
    const QuantisedMatrix& m = *band.to->matrix;
    std::vector<float> rows;
    read_band(checkpoint, m, band.slice, band.first, band.count, rows);
    if (!std::ranges::all_of(rows, [](float v) { return std::isfinite(v); }))
      throw failed("tensor {}: holds NaN or infinities, which have no scale; it cannot be quantised",
                   m.plain.name);
    quantise_band(*band.to, band.slice, band.first, band.count, rows.data());
    progress.add(dtype_bytes(*m.plain.dtype, band.count * m.cols));
  });
}

}  // namespace atom
