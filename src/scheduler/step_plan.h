// StepPlan and StepResult: the whole interface between scheduling policy and devices. Plain values that own
// their data: they can be copied, logged, shipped to another process and replayed.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cache/cache_spec.h"
#include "cache/state_pool.h"

namespace atom {

using SequenceId = int64_t;

inline constexpr int64_t kMaxDrafts = 4;  // tokens drafted ahead of one sequence

// Blocks of one sequence in one group: ids[i] holds positions (first_block + i) * block_size and on.
// first_block is 0 in paged groups; in a window group everything before it has left the window and has no
// block.
struct BlockTableView {
  int64_t first_block = 0;
  std::span<const BlockId> ids;
};

// One sequence's part of a step: rows first_row .. first_row + tokens - 1 at positions context .. context +
// tokens - 1.
struct PlannedSequence {
  SequenceId id = 0;
  int64_t first_row = 0;
  int64_t tokens = 0;   // rows computed now, >= 1
  int64_t drafts = 0;   // of them, the last ones: drafted tokens, of which it turns out how many are right
  int64_t context = 0;  // tokens before them whose KV is in the cache
  bool sample = false;  // the next token is expected in the StepResult, and one more per draft that was right
  // Logits are wanted for this many of the last rows; >= 1 + drafts if sample; more: prompt logits.
  int64_t logit_rows = 0;
  // Tokens to draft behind those that the step appends, if it samples. The tables reach as far as that.
  int64_t propose = 0;
  SlotId slot = kNoSlot;  // of its recurrent state, if the model has any
};

// In StepPlan::token_ids: the token that the step before chooses by its logit row `row`.
constexpr int32_t chosen_by_row(int64_t row) { return static_cast<int32_t>(-1 - row); }
constexpr int64_t choosing_row(int32_t token_id) { return -1 - int64_t{token_id}; }

// A flat list of tokens, decodes first, then prefill chunks; layers never ask which is which.
struct StepPlan {
  struct TableSlice {
    int64_t first_block = 0;
    int64_t begin = 0, count = 0;  // in `blocks`
  };
  // The state in slot `to` becomes that of `from`, or zero if that is kNoSlot.
  struct StateCopy {
    SlotId from = kNoSlot, to = kNoSlot;
    bool operator==(const StateCopy&) const = default;
  };

  int64_t step = 0;  // increases by one with each plan that is not empty
  int64_t block_size = 0;
  int64_t groups = 0;
  bool drafting = false;           // the drafter computes the rows as well, for it has a cache of its own
  std::vector<int32_t> token_ids;  // [rows]; negative in a step planned ahead: see chosen_by_row()
  std::vector<int32_t> positions;  // [rows]
  std::vector<PlannedSequence> sequences;
  std::vector<TableSlice> tables;  // [sequences, groups]
  std::vector<BlockId> blocks;
  std::vector<StateCopy> state_copies;  // to be made before anything is computed, in this order

  bool empty() const { return sequences.empty(); }
  int64_t rows() const { return static_cast<int64_t>(token_ids.size()); }
  BlockTableView table(int64_t sequence, int64_t group) const;  // index in `sequences`, not an id
};

// One line for the step and one per sequence:
//   step 3: 2 sequences, 6 rows
//     #0 context 8 +1 sample tables 0: 0 1 2 | 1: @1 4 5
//     #1 context 0 +5 tables 0: 3 4
// Speculation adds "drafts N" and "propose N". A table that does not start at block 0 has "@first_block";
// recurrent state adds "slot N", and before the sequences "zero slot N" and "copy slot N to M".
std::string to_string(const StepPlan& plan);

struct SequenceResult {
  SequenceId id = 0;
  // Appended tokens, in StepResult::token_ids: 0 if not sampled, else 1 to 1 + drafts.
  int64_t first_token = 0, tokens = 0;
  int64_t drafts = 0;     // what is drafted to follow them, in StepResult::token_ids right behind
  bool finished = false;  // a stop token or rule ended it with these tokens
  bool failed = false;    // its logits were not finite: tokens are ignored, its blocks distrusted
};

// Answers every sequence of the plan, in the plan's order; what is said of one that has ended since is
// ignored.
struct StepResult {
  int64_t step = 0;
  std::vector<int32_t> token_ids;
  std::vector<SequenceResult> sequences;

  void add(SequenceId id, std::span<const int32_t> tokens, bool finished = false,
           std::span<const int32_t> drafts = {});
  void add_failed(SequenceId id);
};

}  // namespace atom
