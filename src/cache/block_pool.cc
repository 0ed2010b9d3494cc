// Block ids: reference counts, a heap of vacant ids and a list of cached ones.
#include "cache/block_pool.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace atom {

BlockPool::BlockPool(int64_t blocks) {
  CHECK(blocks >= 0 && blocks <= std::numeric_limits<BlockId>::max(), "{} blocks", blocks);
  slots_.resize(blocks);
  vacant_.resize(blocks);
  std::iota(vacant_.begin(), vacant_.end(), 0);  // ascending: already a min-heap
}

const BlockPool::Slot& BlockPool::slot(BlockId id) const {
  CHECK(id >= 0 && id < size(), "block {} of {}", id, size());
  return slots_[id];
}

BlockPool::Allocation BlockPool::allocate() {
  Allocation result;
  if (!vacant_.empty()) {
    std::pop_heap(vacant_.begin(), vacant_.end(), std::greater<>());
    result.id = vacant_.back();
    vacant_.pop_back();
  } else if (oldest_ != kNoBlock) {
    result = {oldest_, true};
    unlink(oldest_);
    slots_[result.id].cached = false;
  } else {
    return result;
  }
  slots_[result.id].refs = 1;
  return result;
}

void BlockPool::retain(BlockId id) {
  Slot& block = slot(id);
  if (block.refs == 0) {
    CHECK(block.cached, "block {} is vacant", id);
    unlink(id);
  }
  ++block.refs;
}

void BlockPool::release(BlockId id) {
  Slot& block = slot(id);
  CHECK(block.refs > 0, "block {} is free already", id);
  if (--block.refs > 0) return;
  if (block.cached) {
    block.older = newest_;
    (newest_ == kNoBlock ? oldest_ : slots_[newest_].newer) = id;
    newest_ = id;
    ++cached_free_;
  } else {
    vacant_.push_back(id);
    std::push_heap(vacant_.begin(), vacant_.end(), std::greater<>());
  }
}

void BlockPool::discard(BlockId id) {
  Slot& block = slot(id);
  CHECK(block.refs == 0 && block.cached, "block {} is not cached and free", id);
  unlink(id);
  block.cached = false;
  vacant_.push_back(id);
  std::push_heap(vacant_.begin(), vacant_.end(), std::greater<>());
}

void BlockPool::set_cached(BlockId id, bool cached) {
  Slot& block = slot(id);
  CHECK(block.refs > 0, "block {} is free", id);
  block.cached = cached;
}

void BlockPool::unlink(BlockId id) {
  Slot& block = slots_[id];
  (block.older == kNoBlock ? oldest_ : slots_[block.older].newer) = block.newer;
  (block.newer == kNoBlock ? newest_ : slots_[block.newer].older) = block.older;
  block.older = block.newer = kNoBlock;
  --cached_free_;
}

}  // namespace atom
