// The vocabulary and the merge rules of a BPE model, in flat memory: one arena of bytes and two
// open-addressing tables, so that a file with hundreds of thousands of entries is ready in a fraction of a
// second.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace atom::text {

inline constexpr int32_t kMaxTokens = 1 << 22;
inline constexpr int32_t kNoToken = -1;

// Hashes differ from process to process, so a file cannot be made to collide.
uint64_t hash_bytes(std::string_view bytes);

// Token texts by id and ids by text. Filled once, then read from many threads.
class Vocab {
 public:
  enum class Added { ok, id_taken, text_taken };

  void reserve(int64_t tokens, int64_t bytes);
  // 0 <= id < kMaxTokens. A text that is taken keeps its first id; the new id is recorded with it all the
  // same.
  Added add(std::string_view text, int32_t id);

  int32_t find(std::string_view text) const { return find(text, hash_bytes(text)); }
  int32_t find(std::string_view text, uint64_t hash) const;  // `hash` is hash_bytes(text)
  void prefetch(uint64_t hash) const { __builtin_prefetch(&slots_[hash & mask_]); }
  // The entry that find() would compare first.
  void prefetch_text(uint64_t hash) const;

  bool has(int32_t id) const {
    return id >= 0 && id < size() && entries_[static_cast<size_t>(id)].size != kAbsent;
  }
  // Requires has(id).
  std::string_view text(int32_t id) const {
    const Entry entry = entries_[static_cast<size_t>(id)];
    return {arena_.data() + entry.begin, entry.size};
  }
  int32_t size() const { return static_cast<int32_t>(entries_.size()); }  // largest id + 1

 private:
  static constexpr uint32_t kAbsent = UINT32_MAX;
  struct Entry {
    uint32_t begin = 0, size = kAbsent;
  };
  struct Slot {
    uint32_t tag = 0;  // upper half of the hash
    int32_t id = kNoToken;
  };
  void rehash(size_t slots);
  void insert(uint64_t hash, int32_t id);

  std::string arena_;
  std::vector<Entry> entries_;
  std::vector<Slot> slots_ = std::vector<Slot>(16);
  uint64_t mask_ = 15;
  size_t used_ = 0;
};

struct Merge {
  int32_t left, right, merged;
  uint32_t rank;  // the smallest is applied first
};

// Merge rules by pair. Filled once, then read from many threads.
class MergeTable {
 public:
  struct Target {
    uint32_t rank = UINT32_MAX;
    int32_t merged = kNoToken;
  };
  // Of rules for the same pair the last one counts.
  void build(std::span<const Merge> merges);
  // rank UINT32_MAX: the pair does not merge.
  Target find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (uint64_t i = hash(key);; ++i) {
      const Slot& slot = slots_[i & mask_];
      if (slot.key == key) return slot.target;
      if (slot.key == kEmpty) return {};
    }
  }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;
  struct Slot {
    uint64_t key = kEmpty;
    Target target;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  uint64_t hash(uint64_t key) const {
    const auto product = static_cast<unsigned __int128>(key ^ seed_) * 0x9E3779B97F4A7C15u;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }

  std::vector<Slot> slots_ = std::vector<Slot>(1);
  uint64_t mask_ = 0;
  uint64_t seed_ = 0;
};

}  // namespace atom::text
