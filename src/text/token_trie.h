// The vocabulary as a trie of bytes, for masking tokens by what a grammar allows.
#pragma once
#include <cstdint>
#include <span>
#include <string>
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
  // The tokens of a vocabulary. Of its special ones only those whose texts are in `visible`, with kSpecial in
  // front: no character has that byte, so that only grammars that mean them allow them. Tokens of more than
  // kMaxTokenBytes are left out.
  explicit TokenTrie(const Tokenizer& tokenizer, std::span<const std::string> visible = {});

  static constexpr char kSpecial = '\xFF';
  static constexpr size_t kMaxTokenBytes = 256;

  int32_t vocab_size() const { return vocab_size_; }
  // What a grammar reads for a token; empty for one that is left out.
  std::string_view bytes(int32_t id) const {
    return std::string_view(bytes_).substr(
        begins_[static_cast<size_t>(id)],
        begins_[static_cast<size_t>(id) + 1] - begins_[static_cast<size_t>(id)]);
  }
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
  std::string bytes_;             // of all tokens
  std::vector<uint32_t> begins_;  // of each token, and one behind the last
  std::vector<Node> nodes_;       // and one behind the last
  std::vector<int32_t> ids_;      // sorted by their bytes
};

}  // namespace atom::text
