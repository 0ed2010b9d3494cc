// State slots: a heap of free ones, and both directions of who pays for what.
#include "cache/state_pool.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace atom {

StatePool::StatePool(const StatePlan& plan, int64_t blocks)
    : slot_blocks_(plan.slot_blocks),
      size_(plan.slots),
      payments_(plan.slots),
      slot_of_block_(blocks, kNoSlot),
      vacant_(plan.slots) {
  CHECK(slot_blocks_ > 0 && size_ * slot_blocks_ <= blocks, "{} slots of {} blocks for {} blocks", size_,
        slot_blocks_, blocks);
  std::iota(vacant_.begin(), vacant_.end(), 0);  // ascending: already a min-heap
}

SlotId StatePool::take(std::vector<BlockId> payment) {
  CHECK(static_cast<int64_t>(payment.size()) == slot_blocks_, "{} blocks pay for a slot, not {}",
        slot_blocks_, payment.size());
  CHECK(!vacant_.empty(), "{} slots are in use", size_);
  std::pop_heap(vacant_.begin(), vacant_.end(), std::greater<>());
  const SlotId slot = vacant_.back();
  vacant_.pop_back();
  for (const BlockId block : payment) {
    CHECK(slot_of_block_[block] == kNoSlot, "block {} pays for slot {}", block, slot_of_block_[block]);
    slot_of_block_[block] = slot;
  }
  payments_[slot] = std::move(payment);
  return slot;
}

std::vector<BlockId> StatePool::give_back(SlotId slot) {
  CHECK(!payments_[slot].empty(), "slot {} is free already", slot);
  std::vector<BlockId> payment = std::exchange(payments_[slot], {});
  for (const BlockId block : payment) slot_of_block_[block] = kNoSlot;
  vacant_.push_back(slot);
  std::push_heap(vacant_.begin(), vacant_.end(), std::greater<>());
  return payment;
}

}  // namespace atom
