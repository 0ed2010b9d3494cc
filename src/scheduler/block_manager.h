// Everything that happens to a sequence's blocks: one BlockPool per cache group and the prefix index over
// them; and to its slot of recurrent state, if the model has any.
//
// Invariants: a block's ref count is the number of running sequences whose tables hold it; a block in two
// tables is full, published, and holds the same tokens after the same prefix; a block is published only after
// the step that wrote it was committed, and the index forgets it before it is handed out again.
// A slot is either that of one running sequence, whose paying blocks have ref count 1, or a snapshot that the
// index finds at a node, whose paying blocks are cached and free: when one of them is evicted, the snapshot
// is gone. So snapshots compete with cached blocks, least recently used first, and never keep anyone waiting.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache/block_pool.h"
#include "cache/cache_spec.h"
#include "cache/prefix_index.h"
#include "cache/state_pool.h"
#include "scheduler/sequence.h"

namespace atom {

class BlockManager {
 public:
  BlockManager(int64_t block_size, std::vector<CacheGroup> groups, bool prefix_caching,
               const StatePlan& states = {});

  int groups() const { return static_cast<int>(groups_.size()); }
  int64_t block_size() const { return block_size_; }
  const CacheGroup& group(int group) const { return groups_[group]; }
  const BlockPool& pool(int group) const { return pools_[group]; }
  const PrefixIndex& index() const { return index_; }
  const StatePool* states() const { return states_ ? &*states_ : nullptr; }

  // A sequence enters the waiting state, at its root in the index. Undone by close().
  void open(Sequence& sequence);
  void close(Sequence& sequence);

  // What running a waiting sequence would reuse, and how many of the free blocks it would take from each
  // group: all its tokens in paged groups, at least a step of one token in window groups, and what pays for a
  // state slot. Reused blocks that nobody holds count, for they stop being free.
  struct Admission {
    PrefixIndex::Match match;
    std::vector<int64_t> need;
  };
  Admission consider(const Sequence& sequence) const;
  // Blocks that an admission must leave free: in every group, and besides in paged groups, whose tables grow.
  struct Margin {
    int64_t anywhere = 0;
    int64_t paged = 0;
  };
  // Free blocks of a group beyond the margin.
  int64_t spendable(int group, const Margin& margin) const;
  // True if the admission leaves the margin, given that `victims` gave all their blocks back.
  bool fits(const Admission& admission, const Margin& margin, std::span<Sequence* const> victims = {}) const;
  // Takes the blocks of an admission that fits, and sets `computed` to what is reused.
  void admit(Sequence& sequence, const Admission& admission);

  // Takes what `tokens` more tokens need, leaving `spare` blocks free in each pool. Returns how many of the
  // tokens have blocks now: less when a pool ran out.
  int64_t grow(Sequence& sequence, int64_t tokens, int64_t spare = 0);

  // Tokens after which the sequence's next step must end, to keep a snapshot of its state.
  int64_t next_stop(const Sequence& sequence) const;
  // Asks a running sequence for a snapshot at the end of its first `blocks` blocks. False if it is too late.
  bool request_snapshot(Sequence& sequence, int64_t blocks) const;
  // What the next step must do to slots first.
  std::vector<StepPlan::StateCopy> take_state_copies() { return std::exchange(state_copies_, {}); }

  // The KV of `tokens` more tokens is written: publishes the blocks that became full, keeps a snapshot of the
  // state where one is wanted, and gives back the blocks that no later query sees.
  void advance(Sequence& sequence, int64_t tokens);

  // Gives all blocks back; the sequence is at its root again.
  void release(Sequence& sequence);
  // Makes the sequence's blocks unfindable: their content is not to be trusted.
  void distrust(Sequence& sequence);

 private:
  BlockId take(int group);
  SlotId take_slot();
  int64_t slot_blocks(int group) const { return states_ && group == 0 ? states_->slot_blocks() : 0; }
  int state_group() const { return groups(); }  // of snapshots in the index: one more than all others
  SlotId snapshot_at(NodeId node) const { return states_ ? index_.block(node, state_group()) : kNoSlot; }
  void start_state(Sequence& sequence, const PrefixIndex::Match& match);
  void keep_snapshot(Sequence& sequence);
  void touch_snapshot(SlotId slot);
  void drop_snapshot(SlotId slot, BlockId taken);
  void publish_next(Sequence& sequence);
  void slide(Sequence& sequence);
  // Calls visit(block id) for the blocks of `group` that the match reuses, last to first.
  template <class Visit>
  void visit_reused(const PrefixIndex::Match& match, int group, Visit visit) const;

  const int64_t block_size_;
  const std::vector<CacheGroup> groups_;
  const bool prefix_caching_;
  std::vector<BlockPool> pools_;
  std::optional<StatePool> states_;
  PrefixIndex index_;
  std::vector<StepPlan::StateCopy> state_copies_;
  std::vector<BlockId> blocks_of_node_;                   // scratch of publish_next
  mutable std::vector<std::vector<int32_t>> held_count_;  // scratch of fits: zero between calls
};

}  // namespace atom
