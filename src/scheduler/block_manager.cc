// Block tables: admission, growth, publication, the sliding of windows, release.
#include "scheduler/block_manager.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace atom {
namespace {

std::optional<StatePool> make_states(const StatePlan& plan, const std::vector<CacheGroup>& groups) {
  if (plan.slot_blocks == 0) return std::nullopt;
  return StatePool(plan, groups.front().blocks);
}

// The index finds snapshots of the state like blocks of one more group.
std::vector<CacheGroup> index_groups(std::vector<CacheGroup> groups, const StatePlan& states) {
  if (states.slot_blocks > 0) groups.push_back({.kind = CacheKind::state, .blocks = states.slots});
  return groups;
}

}  // namespace

BlockManager::BlockManager(int64_t block_size, std::vector<CacheGroup> groups, bool prefix_caching,
                           const StatePlan& states)
    : block_size_(block_size),
      groups_(std::move(groups)),
      prefix_caching_(prefix_caching),
      states_(make_states(states, groups_)),
      index_(block_size, index_groups(groups_, states)),
      blocks_of_node_(groups_.size() + (states_ ? 1 : 0), kNoBlock) {
  for (const CacheGroup& group : groups_) {
    pools_.emplace_back(group.blocks);
    held_count_.emplace_back(group.blocks);
  }
}

void BlockManager::open(Sequence& sequence) {
  if (prefix_caching_) sequence.node = index_.open(sequence.salt);
}

void BlockManager::close(Sequence& sequence) {
  if (prefix_caching_) index_.close(std::exchange(sequence.node, kNoNode));
}

template <class Visit>
void BlockManager::visit_reused(const PrefixIndex::Match& match, int group, Visit visit) const {
  const int64_t first = first_needed_block(match.blocks * block_size_, groups_[group].window, block_size_);
  NodeId node = match.node;
  for (int64_t i = match.blocks; i > first; --i, node = index_.parent(node)) visit(index_.block(node, group));
}

BlockManager::Admission BlockManager::consider(const Sequence& sequence) const {
  Admission admission{.match = {.node = sequence.node, .stop = ReuseStop::disabled}, .need = {}};
  if (prefix_caching_ && sequence.reuse_prefix && !sequence.prompt_logits) {
    admission.match = index_.match(sequence.node, sequence.tokens);
  }
  for (int g = 0; g < groups(); ++g) {
    int64_t need = most_blocks_held(groups_[g].window, block_size_, sequence.total(), 1) + slot_blocks(g);
    visit_reused(admission.match, g, [&](BlockId id) { need -= pools_[g].ref_count(id) > 0; });
    admission.need.push_back(need);
  }
  return admission;
}

int64_t BlockManager::spendable(int group, const Margin& margin) const {
  const int64_t growth = groups_[group].kind == CacheKind::paged ? margin.paged : 0;
  return pools_[group].free_blocks() - margin.anywhere - growth;
}

bool BlockManager::fits(const Admission& admission, const Margin& margin,
                        std::span<Sequence* const> victims) const {
  for (int g = 0; g < groups(); ++g) {
    const BlockPool& pool = pools_[g];
    std::vector<int32_t>& held = held_count_[g];
    const auto for_each_held = [&](auto visit) {
      for (const Sequence* victim : victims) {
        for (BlockId id : victim->tables[g].ids) visit(id);
        if (slot_blocks(g) == 0) continue;
        for (BlockId id : states_->payment(victim->slot)) visit(id);
      }
    };
    int64_t freed = 0;
    for_each_held([&](BlockId id) { freed += ++held[id] == pool.ref_count(id); });
    // A reused block that only victims hold would become free, and be taken again.
    visit_reused(admission.match, g,
                 [&](BlockId id) { freed -= held[id] > 0 && held[id] == pool.ref_count(id); });
    for_each_held([&](BlockId id) { held[id] = 0; });
    if (spendable(g, margin) + freed < admission.need[g]) return false;
  }
  return true;
}

void BlockManager::admit(Sequence& sequence, const Admission& admission) {
  const PrefixIndex::Match& match = admission.match;
  sequence.tables.resize(groups());
  // All reused blocks are held before any is taken: taking may evict what nobody holds.
  for (int g = 0; g < groups(); ++g) {
    BlockTable& table = sequence.tables[g];
    table.ids.clear();
    visit_reused(match, g, [&](BlockId id) {
      pools_[g].retain(id);
      table.ids.push_back(id);
    });
    std::ranges::reverse(table.ids);
    table.first_block = match.blocks - static_cast<int64_t>(table.ids.size());
  }
  if (prefix_caching_) {
    index_.open(match.node);
    index_.close(std::exchange(sequence.node, match.node));
  }
  sequence.published = match.blocks;
  sequence.computed = match.blocks * block_size_;
  if (states_) start_state(sequence, match);
  for (int g = 0; g < groups(); ++g) {
    if (groups_[g].kind != CacheKind::paged) continue;
    BlockTable& table = sequence.tables[g];
    while (table.end_block() * block_size_ < sequence.total()) {
      table.ids.push_back(take(g));
      CHECK(table.ids.back() != kNoBlock, "sequence {} was admitted without blocks", sequence.id);
    }
  }
}

int64_t BlockManager::grow(Sequence& sequence, int64_t tokens, int64_t spare) {
  for (int g = 0; g < groups(); ++g) {
    BlockTable& table = sequence.tables[g];
    while (table.end_block() * block_size_ < sequence.computed + tokens) {
      const BlockId id = pools_[g].free_blocks() > spare ? take(g) : kNoBlock;
      if (id == kNoBlock) {
        tokens = table.end_block() * block_size_ - sequence.computed;
        break;
      }
      table.ids.push_back(id);
    }
  }
  return tokens;
}

void BlockManager::advance(Sequence& sequence, int64_t tokens) {
  sequence.computed += tokens;
  if (prefix_caching_) {
    while ((sequence.published + 1) * block_size_ <= sequence.computed) publish_next(sequence);
  }
  if (!sequence.snapshots.empty() && sequence.snapshots.front() * block_size_ <= sequence.computed) {
    sequence.snapshots.erase(sequence.snapshots.begin());
    keep_snapshot(sequence);
  }
  slide(sequence);
}

void BlockManager::release(Sequence& sequence) {
  // Last block first: the tail of a prefix is evicted before its head, without which it is useless.
  for (int g = 0; g < groups(); ++g) {
    BlockTable& table = sequence.tables[g];
    for (auto id = table.ids.rbegin(); id != table.ids.rend(); ++id) pools_[g].release(*id);
    table = {};
  }
  if (sequence.slot != kNoSlot) {
    for (BlockId id : states_->give_back(std::exchange(sequence.slot, kNoSlot))) pools_[0].release(id);
    sequence.snapshots.clear();
    // Its blocks are the most recently used now: so is the snapshot without which they are useless.
    NodeId node = sequence.node;
    while (node != kNoNode && snapshot_at(node) == kNoSlot) node = index_.parent(node);
    if (node != kNoNode) touch_snapshot(snapshot_at(node));
  }
  close(sequence);
  open(sequence);
  sequence.computed = sequence.published = 0;
}

void BlockManager::distrust(Sequence& sequence) {
  for (int g = 0; g < groups(); ++g) {
    for (BlockId id : sequence.tables[g].ids) {
      index_.forget(g, id);
      pools_[g].set_cached(id, false);
    }
  }
  if (!states_) return;
  for (NodeId node = sequence.node; node != kNoNode; node = index_.parent(node)) {
    if (const SlotId slot = snapshot_at(node); slot != kNoSlot) drop_snapshot(slot, kNoBlock);
  }
}

BlockId BlockManager::take(int group) {
  const auto [id, evicted] = pools_[group].allocate();
  if (!evicted) return id;
  const SlotId snapshot = slot_blocks(group) > 0 ? states_->paid_by(id) : kNoSlot;
  if (snapshot != kNoSlot) {
    drop_snapshot(snapshot, id);
  } else {
    index_.forget(group, id);
  }
  return id;
}

SlotId BlockManager::take_slot() {
  std::vector<BlockId> payment;
  while (static_cast<int64_t>(payment.size()) < states_->slot_blocks()) {
    payment.push_back(take(0));
    CHECK(payment.back() != kNoBlock, "no blocks to pay for a state slot");
  }
  return states_->take(std::move(payment));
}

// The snapshot that an admission starts from may be evicted by the very next take: the copy still comes
// first, for whatever is done to its slot is queued behind it.
void BlockManager::start_state(Sequence& sequence, const PrefixIndex::Match& match) {
  const SlotId snapshot = match.blocks > 0 ? snapshot_at(match.node) : kNoSlot;
  if (snapshot != kNoSlot) touch_snapshot(snapshot);
  sequence.slot = take_slot();
  state_copies_.push_back({snapshot, sequence.slot});
  if (!prefix_caching_) return;
  // At the end of what others have had in common with this sequence, and of its prompt.
  const int64_t prompt_blocks = (sequence.prompt_tokens - 1) / block_size_;
  for (const int64_t blocks : {std::min(match.known, prompt_blocks), std::max(match.known, prompt_blocks)}) {
    if (blocks > match.blocks) request_snapshot(sequence, blocks);
  }
}

int64_t BlockManager::next_stop(const Sequence& sequence) const {
  return sequence.snapshots.empty() ? std::numeric_limits<int64_t>::max()
                                    : sequence.snapshots.front() * block_size_;
}

bool BlockManager::request_snapshot(Sequence& sequence, int64_t blocks) const {
  const int64_t end = blocks * block_size_;
  if (end <= sequence.computed || end < sequence.computed + sequence.granted) return false;
  const auto at = std::ranges::lower_bound(sequence.snapshots, blocks);
  if (at == sequence.snapshots.end() || *at != blocks) sequence.snapshots.insert(at, blocks);
  return true;
}

// Only if there are free blocks to pay with: they stay free.
void BlockManager::keep_snapshot(Sequence& sequence) {
  CHECK(sequence.published * block_size_ == sequence.computed, "a snapshot inside a block");
  if (snapshot_at(sequence.node) != kNoSlot || pools_[0].free_blocks() < states_->slot_blocks()) return;
  const SlotId slot = take_slot();
  for (BlockId id : states_->payment(slot)) {
    pools_[0].set_cached(id, true);
    pools_[0].release(id);
  }
  index_.attach(sequence.node, state_group(), slot);
  state_copies_.push_back({sequence.slot, slot});
}

void BlockManager::touch_snapshot(SlotId slot) {
  for (BlockId id : states_->payment(slot)) {
    pools_[0].retain(id);
    pools_[0].release(id);
  }
}

// `taken` is the block whose eviction ends it, if any: all others become vacant.
void BlockManager::drop_snapshot(SlotId slot, BlockId taken) {
  index_.forget(state_group(), slot);
  for (BlockId id : states_->give_back(slot)) {
    if (id != taken) pools_[0].discard(id);
  }
}

void BlockManager::publish_next(Sequence& sequence) {
  for (int g = 0; g < groups(); ++g) {
    const BlockTable& table = sequence.tables[g];
    blocks_of_node_[g] = table.ids[sequence.published - table.first_block];
  }
  const std::span<const int32_t> tokens =
      std::span(sequence.tokens).subspan(sequence.published * block_size_, block_size_);
  sequence.node = index_.publish(sequence.node, tokens, blocks_of_node_);
  ++sequence.published;
  for (int g = 0; g < groups(); ++g) {
    const BlockId id = blocks_of_node_[g];
    if (index_.block(sequence.node, g) == id) pools_[g].set_cached(id, true);
  }
}

void BlockManager::slide(Sequence& sequence) {
  for (int g = 0; g < groups(); ++g) {
    if (groups_[g].kind != CacheKind::window) continue;
    BlockTable& table = sequence.tables[g];
    const int64_t first = first_needed_block(sequence.computed, groups_[g].window, block_size_);
    const int64_t gone = std::min<int64_t>(first - table.first_block, table.ids.size());
    for (int64_t i = 0; i < gone; ++i) pools_[g].release(table.ids[i]);
    table.ids.erase(table.ids.begin(), table.ids.begin() + gone);
    table.first_block += gone;
  }
}

}  // namespace atom
