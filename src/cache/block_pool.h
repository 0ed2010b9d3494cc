// Reference-counted block ids of one cache group. Knows nothing of tokens or bytes. One owning thread, no
// locks.
//
// Every id 0..size-1 is in exactly one state:
//   used    ref count >= 1
//   cached  ref count 0, content still findable through the PrefixIndex: free, but worth keeping
//   vacant  ref count 0, content worthless: free
// Free ids are handed out vacant first (lowest id), then cached ones, least recently freed first: a cached
// block is evicted only at the moment its memory is needed.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "cache/cache_spec.h"

namespace atom {

class BlockPool {
 public:
  explicit BlockPool(int64_t blocks);

  int64_t size() const { return static_cast<int64_t>(slots_.size()); }
  int64_t free_blocks() const {
    return static_cast<int64_t>(vacant_.size()) + cached_free_;
  }  // vacant and cached
  int64_t used_blocks() const { return size() - free_blocks(); }
  int64_t cached_free_blocks() const { return cached_free_; }

  struct Allocation {
    BlockId id = kNoBlock;
    bool evicted = false;  // the block was cached: its owner must make the index forget it
  };
  // A block with ref count 1, or kNoBlock when none is free.
  Allocation allocate();

  // One more holder; a cached free block becomes used again.
  void retain(BlockId id);
  // One holder less. The last one makes the block cached or vacant.
  void release(BlockId id);

  // A cached free block has lost its content: it becomes vacant.
  void discard(BlockId id);

  // The index points at this used block (or no longer does).
  void set_cached(BlockId id, bool cached);

  int32_t ref_count(BlockId id) const { return slot(id).refs; }
  bool is_cached(BlockId id) const { return slot(id).cached; }

 private:
  struct Slot {
    int32_t refs = 0;
    bool cached = false;
    BlockId older = kNoBlock, newer = kNoBlock;  // neighbours among the cached free blocks
  };
  const Slot& slot(BlockId id) const;
  Slot& slot(BlockId id) { return const_cast<Slot&>(std::as_const(*this).slot(id)); }
  void unlink(BlockId id);

  std::vector<Slot> slots_;
  std::vector<BlockId> vacant_;                    // min-heap
  BlockId oldest_ = kNoBlock, newest_ = kNoBlock;  // cached free blocks in the order they were freed
  int64_t cached_free_ = 0;
};

}  // namespace atom
