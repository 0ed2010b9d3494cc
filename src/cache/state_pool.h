// Slots for the recurrent state of sequences, and the blocks that pay for each. A slot is in use by a running
// sequence, or keeps a snapshot of what some sequence's state was. Knows nothing of bytes or tokens. One
// owning thread, no locks.
//
// Every slot in use is paid for by its own `slot_blocks` blocks of the paged group, so a free slot can always
// be found once they are.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "cache/cache_spec.h"

namespace atom {

using SlotId = int32_t;
inline constexpr SlotId kNoSlot = -1;

class StatePool {
 public:
  // `blocks` is the size of the paged group.
  StatePool(const StatePlan& plan, int64_t blocks);

  int64_t slot_blocks() const { return slot_blocks_; }
  int64_t used_slots() const { return size_ - static_cast<int64_t>(vacant_.size()); }

  // The lowest free slot, paid for by these blocks.
  SlotId take(std::vector<BlockId> payment);
  // The slot is free; its blocks are returned.
  std::vector<BlockId> give_back(SlotId slot);

  std::span<const BlockId> payment(SlotId slot) const { return payments_[slot]; }
  SlotId paid_by(BlockId block) const { return slot_of_block_[block]; }  // kNoSlot: the block pays for none

 private:
  const int64_t slot_blocks_, size_;
  std::vector<std::vector<BlockId>> payments_;  // by slot; empty: free
  std::vector<SlotId> slot_of_block_;
  std::vector<SlotId> vacant_;  // min-heap
};

}  // namespace atom
