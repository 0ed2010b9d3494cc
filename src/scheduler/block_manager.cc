// Block tables: admission, growth, publication, the sliding of windows, release.
#include "scheduler/block_manager.h"

#include <algorithm>

#include "base/check.h"

namespace atom {

BlockManager::BlockManager(int64_t block_size, std::vector<CacheGroup> groups, bool prefix_caching)
    : block_size_(block_size),
      groups_(std::move(groups)),
      prefix_caching_(prefix_caching),
      index_(block_size, groups_),
      blocks_of_node_(groups_.size()) {
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
    int64_t need = most_blocks_held(groups_[g].window, block_size_, sequence.total(), 1);
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
  for (int g = 0; g < groups(); ++g) {
    if (groups_[g].kind != CacheKind::paged) continue;
    BlockTable& table = sequence.tables[g];
    while (table.end_block() * block_size_ < sequence.total()) {
      table.ids.push_back(take(g));
      CHECK(table.ids.back() != kNoBlock, "sequence {} was admitted without blocks", sequence.id);
    }
  }
}

int64_t BlockManager::grow(Sequence& sequence, int64_t tokens) {
  for (int g = 0; g < groups(); ++g) {
    BlockTable& table = sequence.tables[g];
    while (table.end_block() * block_size_ < sequence.computed + tokens) {
      const BlockId id = take(g);
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
  slide(sequence);
}

void BlockManager::release(Sequence& sequence) {
  // Last block first: the tail of a prefix is evicted before its head, without which it is useless.
  for (int g = 0; g < groups(); ++g) {
    BlockTable& table = sequence.tables[g];
    for (auto id = table.ids.rbegin(); id != table.ids.rend(); ++id) pools_[g].release(*id);
    table = {};
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
}

BlockId BlockManager::take(int group) {
  const auto [id, evicted] = pools_[group].allocate();
  if (evicted) index_.forget(group, id);
  return id;
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
