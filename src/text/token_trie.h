// The vocabulary as a trie of bytes, for masking tokens by what a grammar allows.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace atom::text {

class Tokenizer;

// Nodes stand in depth-first order, so that a subtree is a range of nodes, and its tokens are a range too.
// Immutable; safe from many threads.
class TokenTrie {
 public:
  struct Node {
    uint32_t end;     // behind the last node of the subtree
    uint32_t tokens;  // first of the tokens of the subtree, those that end at this node first
    uint8_t byte;     // on the edge to this node
  };

  // tokens[id] are the bytes of a token; one without bytes is never allowed by a mask.
  explicit TokenTrie(std::span<const std::string_view> tokens);
  // The tokens of a vocabulary, without its special ones.
  explicit TokenTrie(const Tokenizer& tokenizer);

  int32_t vocab_size() const { return vocab_size_; }
  // Node 0 is the root; the nodes of the level below `node` follow each other by their `end`.
  const Node& node(uint32_t index) const { return nodes_[index]; }
  // The ids of the tokens that end at a node.
  std::span<const int32_t> tokens_at(uint32_t index) const {
    return std::span(ids_).subspan(nodes_[index].tokens, nodes_[index + 1].tokens - nodes_[index].tokens);
  }
  uint32_t size() const { return static_cast<uint32_t>(nodes_.size()) - 1; }

 private:
  void build(std::span<const std::string_view> tokens);

  int32_t vocab_size_ = 0;
  std::vector<Node> nodes_;   // and one behind the last
  std::vector<int32_t> ids_;  // sorted by their bytes
};

}  // namespace atom::text
