// Finds blocks whose content is the KV of a given token prefix, in all cache groups at once.
//
// A trie of full blocks. A node is one block of tokens after one exact prefix: it has a parent, the token
// ids, and in each group the block that holds them, or none. Children are found through a 64-bit hash chained
// from the parent's; the chain starts from a salt (model, dtype, adapter, tenant), and parent and token ids
// are compared on every hit, so a collision costs time, never a wrong answer. A node lives while a group has
// its block, a child lives, or a sequence has it open. The index holds no references to blocks: their owner
// must call forget() before a block gets other content. One owning thread, no locks.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cache/cache_spec.h"

namespace atom {

// Why the block after the reused prefix was not reused.
enum class ReuseStop : uint8_t {
  disabled,       // reuse is off for the engine or for this request
  never_seen,     // no such block was published (or so long ago that it is forgotten)
  evicted,        // it was published; at least one group has since given its memory to others
  no_state,       // its tokens are there, but no snapshot of the recurrent state after them
  last_token,     // it holds the last token, and one token must be computed to get logits
  partial_block,  // the remaining tokens do not fill a block
};
std::string_view to_string(ReuseStop stop);

// What a request is told about reuse.
struct PrefixReuse {
  int64_t tokens = 0;  // a multiple of the block size, less than the prompt
  ReuseStop stop = ReuseStop::disabled;
};

using NodeId = int32_t;
inline constexpr NodeId kNoNode = -1;

class PrefixIndex {
 public:
  using Tokens = std::span<const int32_t>;
  using HashBlock = uint64_t (*)(uint64_t parent, Tokens tokens);
  static uint64_t xxhash(uint64_t parent, Tokens tokens);

  // Needs the kind, window and number of blocks of each group. In a group of kind `state` a block is a
  // snapshot of the recurrent state after the node's tokens. Tests pass a bad `hash` to force collisions.
  PrefixIndex(int64_t block_size, std::span<const CacheGroup> groups, HashBlock hash = xxhash);

  // The root of `salt`, opened: it stays until close(), or until publish() moves the opening to a child.
  NodeId open(std::string_view salt);
  // Opens one more holder of `node`.
  void open(NodeId node) { ++nodes_[node].open; }
  void close(NodeId node);

  struct Match {
    NodeId node = kNoNode;  // the last reused block's node, or the root; not opened
    int64_t blocks = 0;     // reused blocks
    int64_t known = 0;      // blocks that would be reused if there were state snapshots everywhere
    ReuseStop stop = ReuseStop::never_seen;
  };
  // The longest prefix of `tokens` that leaves at least one token and whose blocks are all present: every
  // block in paged groups, in window groups those that the next query can see, in state groups the last.
  Match match(NodeId root, Tokens tokens) const;

  NodeId parent(NodeId node) const { return nodes_[node].parent; }
  BlockId block(NodeId node, int group) const { return blocks_[node * groups_ + group]; }

  // Makes the block of `tokens` after the open node `parent` findable and moves the opening to it. blocks[g]
  // is its block in group g, or kNoBlock. The first block published for a node and group stays; a later one
  // is not recorded: ask block(node, g) to see which it is. Call only when the KV has really been written.
  NodeId publish(NodeId parent, Tokens tokens, std::span<const BlockId> blocks);

  // Gives the node its block in a group where it has none.
  void attach(NodeId node, int group, BlockId block);

  // The block no longer has the content it was published with. Ignores blocks that the index does not know.
  void forget(int group, BlockId block);

  int64_t nodes() const { return static_cast<int64_t>(nodes_.size() - vacant_.size()); }

 private:
  struct Node {
    uint64_t hash = 0;
    NodeId parent = kNoNode;
    int32_t children = 0;
    int32_t present = 0;  // groups that have the block
    int32_t open = 0;     // sequences standing here
  };
  struct SameHash {
    size_t operator()(uint64_t hash) const { return hash; }
  };

  NodeId find_child(NodeId parent, uint64_t hash, Tokens tokens) const;
  NodeId make_node(NodeId parent, uint64_t hash);
  void drop_if_unused(NodeId node);
  Tokens tokens(NodeId node) const;

  const int64_t block_size_;
  const int64_t groups_;
  const HashBlock hash_;
  std::vector<int64_t> visible_blocks_;  // per group: blocks before a boundary that must be present
  std::vector<bool> is_state_;           // per group
  std::vector<Node> nodes_;
  std::vector<NodeId> vacant_;                                    // unused entries of nodes_
  std::vector<int32_t> tokens_;                                   // [nodes, block_size]
  std::vector<BlockId> blocks_;                                   // [nodes, groups]
  std::vector<std::vector<NodeId>> node_of_;                      // per group, by block id
  std::unordered_multimap<uint64_t, NodeId, SameHash> children_;  // every node but roots, by hash
  std::unordered_map<std::string, NodeId> roots_;                 // by salt
  std::unordered_map<NodeId, std::string> salts_;                 // by root
  std::vector<uint64_t> ghosts_;  // hashes of dropped nodes, direct-mapped: they explain misses, no more
};

}  // namespace atom
