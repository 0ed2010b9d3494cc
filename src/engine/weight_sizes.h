// How many bytes a weight takes where it is stored: from headers, or reckoned from the config.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/model_files.h"
#include "checkpoint/name_patterns.h"
#include "nn/param.h"

namespace atom {

class WeightSizes {
 public:
  // Throws Error (invalid) if there is no checkpoint and the config's quantization is of unknown size.
  WeightSizes(const ModelFiles& files, const Checkpoint* checkpoint);
  // Of one element of `piece`, scales and everything else that belongs to it included.
  double bytes_per_element(const ParamEntry& param, const Piece& piece) const;
  bool estimated() const { return checkpoint_ == nullptr; }

 private:
  std::optional<double> from_headers(const Source& source, const Piece& piece) const;
  double from_config(const ParamEntry& param, const Piece& piece) const;

  const Checkpoint* checkpoint_;
  double plain_ = 2;                            // bytes of an element
  std::shared_ptr<const WeightFormat> format_;  // null: all is plain, or NVFP4
  double nvfp4_ = 0;       // bytes of an element of NVFP4, which is only planned; 0: none
  NamePatterns excluded_;  // modules that stay plain in NVFP4
};

}  // namespace atom
