#include "nn/vocab.h"

#include "ops/embed.h"

namespace atom::nn {

Vocab::Vocab(Scope embed, Scope head, int64_t vocab, int64_t hidden, bool tied)
    : vocab_(vocab), hidden_(hidden), axis_(embed.mesh().mlp) {
  Shard shard = Shard::by_rows(Axis::mlp);
  shard.ragged = true;
  local_ = embed.local(vocab, shard, embed.join("weight"));
  const Mesh& mesh = embed.mesh();
  if (mesh.first_stage() || (mesh.last_stage() && tied)) {
    embed_ = embed.matrix("weight", {Piece{{{embed.join("weight")}}, vocab, hidden, shard}});
    if (!tied) embed_.mark_lookup_only();
  }
  if (mesh.last_stage()) {
    head_ = tied ? embed_ : head.matrix("weight", {Piece{{{head.join("weight")}}, vocab, hidden, shard}});
  }
  if (tied) embed.ignore(head.join("weight"), "tie_word_embeddings: the embedding is the head");
}

Tensor Vocab::embed(Ctx& c, std::span<const int32_t> ids) const {
  Tensor x = c.alloc(static_cast<int64_t>(ids.size()), hidden_);
  ops::run(c.stream, ops::Embed{x, embed_, ids, local_.begin});
  if (axis_->size() > 1) axis_->all_reduce(x);
  return x;
}

Tensor Vocab::logits(Ctx& c, Tensor x) const {
  Tensor local = c.alloc(x.dim(0), local_.count);
  ops::run(c.stream, ops::Linear{.out = local, .x = x, .w = head_, .precision = c.precision});
  if (axis_->size() == 1) return local;
  Tensor all = c.alloc(x.dim(0), vocab_);
  axis_->all_gather(all, local);
  return all;
}

}  // namespace atom::nn
