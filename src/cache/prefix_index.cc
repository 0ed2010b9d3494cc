// The trie of published blocks.
#include "cache/prefix_index.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.h"

namespace atom {
namespace {
constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
}

std::string_view to_string(ReuseStop stop) {
  switch (stop) {
    case ReuseStop::disabled:
      return "disabled";
    case ReuseStop::never_seen:
      return "never seen";
    case ReuseStop::evicted:
      return "evicted";
    case ReuseStop::no_state:
      return "no state";
    case ReuseStop::last_token:
      return "last token";
    case ReuseStop::partial_block:
      return "partial block";
  }
  return "?";
}

uint64_t PrefixIndex::xxhash(uint64_t parent, Tokens tokens) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), parent);
}

PrefixIndex::PrefixIndex(int64_t block_size, std::span<const CacheGroup> groups, HashBlock hash)
    : block_size_(block_size), groups_(static_cast<int64_t>(groups.size())), hash_(hash) {
  int64_t most_blocks = 0;
  for (const CacheGroup& group : groups) {
    // In a window group, the query at a block boundary sees the window - 1 tokens before it.
    const bool is_state = group.kind == CacheKind::state;
    is_state_.push_back(is_state);
    visible_blocks_.push_back(is_state           ? 1
                              : group.window > 0 ? (group.window - 1 + block_size - 1) / block_size
                                                 : kAll);
    node_of_.emplace_back(group.blocks, kNoNode);
    most_blocks = std::max(most_blocks, group.blocks);
  }
  ghosts_.resize(std::bit_ceil(static_cast<uint64_t>(2 * most_blocks + 1)));
}

NodeId PrefixIndex::open(std::string_view salt) {
  auto [root, is_new] = roots_.try_emplace(std::string(salt), kNoNode);
  if (is_new) {
    root->second = make_node(kNoNode, XXH3_64bits(salt.data(), salt.size()));
    salts_.emplace(root->second, salt);
  }
  open(root->second);
  return root->second;
}

void PrefixIndex::close(NodeId node) {
  CHECK(nodes_[node].open > 0, "node {} is not open", node);
  --nodes_[node].open;
  drop_if_unused(node);
}

PrefixIndex::Match PrefixIndex::match(NodeId root, Tokens tokens) const {
  const int64_t total = static_cast<int64_t>(tokens.size());
  const int64_t usable = (total - 1) / block_size_;  // leaves at least one token to compute
  Match best{.node = root,
             .stop = total % block_size_ == 0 ? ReuseStop::last_token : ReuseStop::partial_block};
  std::vector<int64_t> run(groups_);  // present blocks in a row that end here, per group
  NodeId node = root;
  for (int64_t depth = 1; depth <= usable; ++depth) {
    const Tokens block_tokens = tokens.subspan((depth - 1) * block_size_, block_size_);
    const uint64_t hash = hash_(nodes_[node].hash, block_tokens);
    node = find_child(node, hash, block_tokens);
    if (node == kNoNode) {
      const bool was_here = ghosts_[hash & (ghosts_.size() - 1)] == hash;
      best.stop = best.known > best.blocks              ? ReuseStop::no_state
                  : was_here || best.blocks < depth - 1 ? ReuseStop::evicted
                                                        : ReuseStop::never_seen;
      return best;
    }
    bool known_here = true, usable_here = true;
    for (int64_t g = 0; g < groups_; ++g) {
      run[g] = block(node, static_cast<int>(g)) != kNoBlock ? run[g] + 1 : 0;
      const bool enough = run[g] >= std::min(depth, visible_blocks_[g]);
      if (!enough && visible_blocks_[g] == kAll) {
        best.stop = ReuseStop::evicted;
        return best;
      }
      usable_here = usable_here && enough;
      known_here = known_here && (enough || is_state_[g]);
    }
    if (known_here) best.known = depth;
    if (usable_here) best = {node, depth, depth, best.stop};
  }
  if (best.blocks < usable) {
    best.stop = best.known > best.blocks ? ReuseStop::no_state : ReuseStop::evicted;
  }
  return best;
}

NodeId PrefixIndex::publish(NodeId parent, Tokens tokens, std::span<const BlockId> blocks) {
  CHECK(static_cast<int64_t>(tokens.size()) == block_size_, "{} tokens", tokens.size());
  CHECK(nodes_[parent].open > 0, "node {} is not open", parent);
  const uint64_t hash = hash_(nodes_[parent].hash, tokens);
  NodeId node = find_child(parent, hash, tokens);
  if (node == kNoNode) {
    node = make_node(parent, hash);
    ++nodes_[parent].children;
    std::copy(tokens.begin(), tokens.end(), tokens_.begin() + node * block_size_);
    children_.emplace(hash, node);
  }
  for (int64_t g = 0; g < groups_; ++g) {
    if (block(node, static_cast<int>(g)) == kNoBlock && blocks[g] != kNoBlock)
      attach(node, static_cast<int>(g), blocks[g]);
  }
  open(node);
  close(parent);
  return node;
}

void PrefixIndex::attach(NodeId node, int group, BlockId id) {
  CHECK(block(node, group) == kNoBlock, "node {} has a block in group {}", node, group);
  CHECK(node_of_[group][id] == kNoNode, "block {} is published already", id);
  blocks_[node * groups_ + group] = id;
  node_of_[group][id] = node;
  ++nodes_[node].present;
}

void PrefixIndex::forget(int group, BlockId block) {
  const NodeId node = std::exchange(node_of_[group][block], kNoNode);
  if (node == kNoNode) return;
  blocks_[node * groups_ + group] = kNoBlock;
  --nodes_[node].present;
  drop_if_unused(node);
}

PrefixIndex::Tokens PrefixIndex::tokens(NodeId node) const {
  return Tokens(tokens_).subspan(node * block_size_, block_size_);
}

NodeId PrefixIndex::find_child(NodeId parent, uint64_t hash, Tokens block_tokens) const {
  for (auto [at, end] = children_.equal_range(hash); at != end; ++at) {
    const NodeId node = at->second;
    if (nodes_[node].parent == parent && std::ranges::equal(tokens(node), block_tokens)) return node;
  }
  return kNoNode;
}

NodeId PrefixIndex::make_node(NodeId parent, uint64_t hash) {
  NodeId node;
  if (vacant_.empty()) {
    node = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back();
    tokens_.resize(nodes_.size() * block_size_);
    blocks_.resize(nodes_.size() * groups_, kNoBlock);
  } else {
    node = vacant_.back();
    vacant_.pop_back();
  }
  nodes_[node] = {.hash = hash, .parent = parent};
  return node;
}

// Dropping a node may leave its parent unused, and so on up to the root.
void PrefixIndex::drop_if_unused(NodeId node) {
  while (node != kNoNode) {
    const Node& entry = nodes_[node];
    if (entry.children > 0 || entry.present > 0 || entry.open > 0) return;
    const NodeId parent = entry.parent;
    if (parent == kNoNode) {
      const auto salt = salts_.find(node);
      roots_.erase(salt->second);
      salts_.erase(salt);
    } else {
      auto at = children_.equal_range(entry.hash).first;
      while (at->second != node) ++at;
      children_.erase(at);
      ghosts_[entry.hash & (ghosts_.size() - 1)] = entry.hash;
      --nodes_[parent].children;
    }
    vacant_.push_back(node);
    node = parent;
  }
}

}  // namespace atom
