// How a quantised checkpoint stores its matrices: one strategy per format, chosen by config.json's
// quantization_config. A format is a file of its own (fp8_format.cc, mxfp4_format.cc, compressed_format.cc,
// quark_format.cc) and a line in weight_format.cc; everything behind it (account, loader, dummy weights)
// reads what it puts into the sources of a piece, and kernels see the element type and the scales of
// ops::WeightPart.
#pragma once
#include <memory>

#include "checkpoint/config_keys.h"
#include "checkpoint/name_patterns.h"
#include "nn/scope.h"

namespace atom {

class WeightFormat {
 public:
  explicit WeightFormat(NamePatterns excluded) : excluded_(std::move(excluded)) {}
  virtual ~WeightFormat() = default;

  // Extends the sources of a matrix by the ways this format may store them, unless its module is excluded.
  // Plain numbers remain possible: no publisher lists every module that is left as it was.
  void apply(Piece& piece) const;
  // Declares tensors that the format adds and that are never read.
  virtual void ignore_unread(const Scope&) const {}

  // The module of a tensor: its name without ".weight", or the name itself for a stack of experts.
  static std::string_view module_of(std::string_view tensor);

 protected:
  // All ways to store the matrix that an unquantised checkpoint has at `plain`, the preferred one first.
  virtual std::vector<Source> sources(const Source& plain) const = 0;

 private:
  NamePatterns excluded_;
};

// The modules that a `quantization_config` lists as stored as they were, in every spelling of the list.
NamePatterns excluded_modules(const ConfigReader& quantization);

// The format that `quantization_config` names. Throws Error (invalid) that names an unsupported one and the
// remedy.
std::shared_ptr<const WeightFormat> make_weight_format(const ConfigReader& quantization);

// Of the files beside weight_format.cc.
std::shared_ptr<const WeightFormat> make_fp8_format(const ConfigReader& quantization, NamePatterns excluded);
std::shared_ptr<const WeightFormat> make_mxfp4_format(const ConfigReader& quantization,
                                                      NamePatterns excluded);
std::shared_ptr<const WeightFormat> make_compressed_format(const ConfigReader& quantization,
                                                           NamePatterns excluded);
std::shared_ptr<const WeightFormat> make_quark_format(const ConfigReader& quantization,
                                                      NamePatterns excluded);

// What they share.

inline constexpr int64_t kMaxScaleBlock = 1 << 16;  // rows or columns that share a scale

// The error that refuses weights stored as `what`, with the remedy.
Error unsupported_weights(const ConfigReader& quantization, std::string_view key, std::string_view what);
// A text from a config, as messages show it.
std::string quoted(const std::string& text);

// True for what publishers leave in 16 bits even where no list says so. Real checkpoints say it by the stored
// type; dummy weights follow this.
bool usually_plain(std::string_view tensor);

// FP8 (E4M3) instead of `plain`. Blocks of 0 x 0: the shape of the scales says whether they are per row or
// per tensor.
Source fp8_source(const Source& plain, int64_t block_rows, int64_t block_cols);
std::shared_ptr<const WeightFormat> make_fp8_in_blocks(NamePatterns excluded, int64_t block_rows,
                                                       int64_t block_cols);
// MXFP4 of a matrix instead of `plain`: `name` [N, K / 2] U8, two values a byte, low four bits first, and
// scales [N, K / 32] U8, E8M0, beside the name of `plain`.
Source mxfp4_source(const Source& plain, const std::string& name);

void ignore_activation_scales(const Scope&);

}  // namespace atom
