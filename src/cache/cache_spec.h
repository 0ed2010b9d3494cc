// What layers ask of the cache, and how one byte budget becomes blocks: pure arithmetic, no memory is taken.
//
// A layer asks with a CacheSpec and keeps the index of its spec as a handle. Specs that live and die together
// form a CacheGroup: all full-attention layers are one group, each distinct window size is another. A block
// is `block_size` tokens of every layer of its group; a sequence has one block table per group.
//
// State layers have no group. A sequence has one slot, which is the state of all of them, and pays for its
// bytes with blocks of the paged group that nobody else can use meanwhile: state and tokens share one budget,
// and a slot that is not in use costs nothing.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace atom {

using BlockId = int32_t;
inline constexpr BlockId kNoBlock = -1;

enum class CacheKind : uint8_t {
  paged,   // keeps every token of the sequence
  window,  // keeps only what the next query can still see
  state,   // keeps a fixed amount per sequence, whatever its length: recurrent layers
};

struct CacheSpec {
  CacheKind kind = CacheKind::paged;
  int64_t bytes_per_token = 0;  // K and V (or latent, index, scales) of this layer on this rank
  int64_t window = 0;           // window only: tokens a query sees, itself included
  int64_t state_bytes = 0;      // state only: of one sequence
};

struct CacheLimits {
  int64_t budget_bytes = 0;
  int64_t block_size = 16;  // tokens
  int64_t max_num_seqs = 0;
  int64_t max_model_len = 0;           // tokens of one sequence, prompt and output
  int64_t max_num_batched_tokens = 0;  // tokens of one step
};

struct CacheGroup {
  CacheKind kind = CacheKind::paged;
  int64_t window = 0;           // as in CacheSpec; 0 for paged
  int64_t bytes_per_token = 0;  // sum over `specs`
  std::vector<int> specs;       // handles of the layers in this group, ascending
  int64_t blocks = 0;           // ids 0 .. blocks-1
};

// What one slot costs, and how many there can be.
struct StatePlan {
  int64_t slot_blocks = 0;  // blocks of the paged group that pay for one slot; 0: no layer has state
  int64_t slots = 0;        // as many as all blocks could pay for
};

struct CachePlan {
  CacheLimits limits;
  std::vector<CacheGroup> groups;  // the paged group first, then windows by increasing size
  StatePlan states;
  std::vector<int> group_of;    // by handle; -1 for state
  int64_t used_bytes = 0;       // <= limits.budget_bytes
  int64_t full_load_bytes = 0;  // for max_num_seqs sequences of max_model_len; more only feeds reuse
  int64_t largest_context = 0;  // longest single sequence the blocks hold; >= max_model_len
};

// First block that a query at `position` still needs: an index in the sequence, not an id. window 0: block 0.
inline int64_t first_needed_block(int64_t position, int64_t window, int64_t block_size) {
  const int64_t oldest = window > 0 ? position - (window - 1) : 0;
  return oldest > 0 ? oldest / block_size : 0;
}

// Most blocks that a sequence with at most `tokens` tokens holds in a group while it computes `chunk` tokens
// a step.
int64_t most_blocks_held(int64_t window, int64_t block_size, int64_t tokens, int64_t chunk);

// Bytes that `tokens` tokens of one sequence need, without rounding to blocks: sum of bytes * min(tokens,
// window), and its state.
int64_t cache_bytes(std::span<const CacheSpec> specs, int64_t tokens);

// What limits.max_num_seqs sequences of limits.max_model_len tokens need at once, in whole blocks;
// limits.budget_bytes is not looked at. Throws `invalid` for nonsense in the arguments.
int64_t full_load_bytes(std::span<const CacheSpec> specs, const CacheLimits& limits);

// Groups the specs and shares the budget. A window group gets what max_num_seqs sequences hold at once, or
// fewer sequences when memory is short, and never more blocks than the paged group (a sequence's window
// blocks are a subset of its positions); the paged group takes the rest. A window of max_model_len or more is
// paged. Throws `invalid` for nonsense in the arguments, for state without a paged group to pay for it, and
// for a budget below one sequence of max_model_len: the message has the smallest budget that works and the
// largest context that fits.
CachePlan plan_cache(std::span<const CacheSpec> specs, const CacheLimits& limits);

// The bill, one line per group.
std::string to_string(const CachePlan& plan);

}  // namespace atom
