// The vocabulary and the merge rules of a BPE model.
#include "text/bpe_vocab.h"

#include <bit>
#include <cstring>
#include <random>

#include "base/check.h"

namespace atom::text {

namespace {

uint64_t random_seed() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}
const uint64_t kSeed = random_seed();

uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}
uint64_t load(const char* p, size_t bytes) {
  uint64_t value = 0;
  std::memcpy(&value, p, bytes);
  return value;
}

}  // namespace

uint64_t hash_bytes(std::string_view bytes) {
  const char* p = bytes.data();
  size_t left = bytes.size();
  uint64_t h = kSeed ^ (left * 0x9E3779B97F4A7C15u);
  for (; left > 8; left -= 8, p += 8) h = mix(h ^ load(p, 8), 0xD6E8FEB86659FD93u ^ kSeed);
  // The last 1 to 8 bytes in two overlapping loads.
  uint64_t tail = 0;
  if (left >= 4) {
    tail = load(p, 4) << 32 | load(p + left - 4, 4);
  } else if (left > 0) {
    tail = load(p, 1) << 16 | load(p + left / 2, 1) << 8 | load(p + left - 1, 1);
  }
  return mix(h ^ tail, 0xA0761D6478BD642Fu);
}

void Vocab::reserve(int64_t tokens, int64_t bytes) {
  arena_.reserve(static_cast<size_t>(bytes));
  entries_.reserve(static_cast<size_t>(tokens));
  const size_t slots = std::bit_ceil(static_cast<size_t>(tokens) * 2 + 16);
  if (slots > slots_.size()) rehash(slots);
}

void Vocab::rehash(size_t slots) {
  std::vector<Slot> old(slots);
  old.swap(slots_);
  mask_ = slots - 1;
  for (const Slot slot : old) {
    if (slot.id != kNoToken) insert(hash_bytes(text(slot.id)), slot.id);
  }
}

void Vocab::insert(uint64_t hash, int32_t id) {
  uint64_t i = hash;
  while (slots_[i & mask_].id != kNoToken) ++i;
  slots_[i & mask_] = {static_cast<uint32_t>(hash >> 32), id};
}

Vocab::Added Vocab::add(std::string_view text, int32_t id) {
  CHECK(id >= 0 && id < kMaxTokens, "id {}", id);
  if (has(id)) return Added::id_taken;
  CHECK(arena_.size() + text.size() < UINT32_MAX);
  if (used_ * 2 >= slots_.size()) rehash(slots_.size() * 2);
  const auto index = static_cast<size_t>(id);
  if (index >= entries_.size()) entries_.resize(index + 1);
  entries_[index] = {static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(text.size())};
  arena_.append(text);
  const uint64_t hash = hash_bytes(text);
  if (find(text, hash) != kNoToken) return Added::text_taken;
  insert(hash, id);
  ++used_;
  return Added::ok;
}

int32_t Vocab::find(std::string_view bytes, uint64_t hash) const {
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (uint64_t i = hash;; ++i) {
    const Slot slot = slots_[i & mask_];
    if (slot.id == kNoToken) return kNoToken;
    if (slot.tag == tag && text(slot.id) == bytes) return slot.id;
  }
}

void Vocab::prefetch_text(uint64_t hash) const {
  const Slot slot = slots_[hash & mask_];
  if (slot.id != kNoToken) __builtin_prefetch(&entries_[static_cast<size_t>(slot.id)]);
}

void MergeTable::build(std::span<const Merge> merges) {
  seed_ = random_seed();
  slots_.assign(std::bit_ceil(merges.size() * 3 / 2 + 1), {});
  mask_ = slots_.size() - 1;
  for (const Merge& merge : merges) {
    const uint64_t key = key_of(merge.left, merge.right);
    uint64_t i = hash(key);
    while (slots_[i & mask_].key != kEmpty && slots_[i & mask_].key != key) ++i;
    slots_[i & mask_] = {key, {merge.rank, merge.merged}};
  }
}

}  // namespace atom::text
