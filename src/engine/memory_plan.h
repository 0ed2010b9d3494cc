// The memory bill of a model per rank before anything is loaded, and what fits in a device.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/model_files.h"
#include "nn/param.h"
#include "runtime/worker.h"

namespace atom {

struct MemoryRequest {
  ParallelOptions parallel;
  CacheLimits limits;  // of one rank's cache; budget_bytes is not looked at
  CacheTypes cache = {DType::bf16, DType::bf16};
  int64_t drafts = 0;            // most tokens drafted ahead; 0: the layer that drafts is not loaded
  int64_t device_memory = 0;     // of one rank, in bytes; 0: without limit
  bool longest_context = false;  // shorten max_model_len to what fits instead of refusing it
};

// Layers of one rank that keep the same number of bytes per token, for as long.
struct CacheLine {
  CacheKind kind = CacheKind::paged;
  int64_t layers = 0;
  int64_t window = 0;
  int64_t bytes_per_token = 0;  // of one layer; for state: bytes per sequence
  int64_t tokens = 0;           // kept by all sequences together, in whole blocks; for state: sequences
  int64_t bytes() const;        // saturates, as all sums of a bill do
};

struct RankBill {
  int stage = 0, rank = 0;  // rank: within the stage
  int64_t weights = 0;
  int64_t drafter_weights = 0;  // of these, the layer that drafts tokens
  std::vector<CacheLine> cache;
  int64_t workspace = 0;
  int64_t cache_bytes() const;
  int64_t total() const;
};

struct Fit {
  int64_t context = 0;    // tokens of each sequence
  int64_t sequences = 0;  // that fit at once
};

struct MemoryPlan {
  CacheLimits limits;              // max_model_len as it was decided
  int64_t sequences = 0;           // of max_model_len that the bill is for: max_num_seqs, or as many as fit
  std::vector<RankBill> ranks;     // [stage, rank]
  std::string cache_types;         // for people, as cache_types_text() has them
  int64_t without_windows = 0;     // cache of all ranks if every layer kept every token
  bool weights_estimated = false;  // from the config: no files were there
  std::vector<Fit> fits;           // with a device's memory: doubling contexts up to max_model_len
};

// `checkpoint` is null if only the config is there: weights are then reckoned from the dtype or the
// quantization that it names. Throws Error (invalid) for a bad config, ranks that cannot share the model,
// weights of unknown size, and for memory that does not hold the weights or one sequence of max_model_len:
// the message has the largest context that fits.
MemoryPlan plan_memory(const ModelFiles& files, const Checkpoint* checkpoint, const MemoryRequest& request);

// What the cache of one rank takes for `sequences` sequences of `tokens` tokens each, in whole blocks.
std::vector<CacheLine> cache_lines(const std::vector<CacheSpec>& specs, const CacheLimits& limits,
                                   int64_t tokens, int64_t sequences);

}  // namespace atom
