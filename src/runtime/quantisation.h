// Quantising the weights of a checkpoint that holds plain numbers: which matrices, under which names and with
// which quantization_config is what the format's publishers do, as the WeightFormat that reads them says.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/run_jobs.h"
#include "checkpoint/checkpoint.h"
#include "nn/param.h"

namespace atom {

// A matrix, or a stack of them, and what is stored in its place.
struct QuantisedMatrix {
  StoredTensor plain;       // [rows, cols] or [slices, rows, cols]
  bool transposed = false;  // plain is [cols, rows] or [slices, cols, rows]
  int64_t slices = 1, rows = 0, cols = 0;
  int64_t block_rows = 0, block_cols = 0;  // that share a scale
  DType type = DType::f8e4m3;              // or f4e2m1x2
  StoredTensor elements, scales;           // without a file
};

struct Quantisation {
  Json config;                            // the quantization_config
  std::vector<QuantisedMatrix> matrices;  // empty without a checkpoint
};

// What `target` may be.
std::vector<std::string> quantisation_targets();

// `tables` are those of the whole model, its drafter too, declared without a format; `checkpoint` may be
// null. Throws Error (invalid) for an unknown target, and if no matrix can be stored so.
Quantisation plan_quantisation(const ModelTables& tables, const Checkpoint* checkpoint,
                               const std::string& target);

// Where the bytes of a matrix go.
struct QuantisedBytes {
  const QuantisedMatrix* matrix;
  std::byte* elements;
  std::byte* scales;
};

// Computes them on so many threads. `report` is told the bytes of plain numbers that are done and in all,
// from one thread at a time. Throws Error (failed) naming a matrix that holds NaN or an infinity.
void quantise(const Checkpoint& checkpoint, const std::vector<QuantisedBytes>& matrices, int threads,
              const JobProgress::Report& report);

}  // namespace atom
