#include "nn/vocab.h"

#include "ops/embed.h"

namespace atom::nn {

namespace {

Shard vocabulary_shard() {
  Shard shard = Shard::by_rows(Axis::mlp);
  shard.ragged = true;
  return shard;
}

}  // namespace

Matrix Vocab::declare(Scope s) const {
  return s.matrix("weight", {Piece{{{s.join("weight")}}, vocab_, hidden_, vocabulary_shard()}});
}

Vocab::Vocab(Scope embed, Scope head, int64_t vocab, int64_t hidden, bool tied)
    : vocab_(vocab),
      hidden_(hidden),
      embed_name_(embed.join("weight")),
      head_name_(tied ? embed_name_ : head.join("weight")),
      axis_(embed.mesh().mlp) {
  local_ = embed.local(vocab, vocabulary_shard(), embed.join("weight"));
  const Mesh& mesh = embed.mesh();
  if (mesh.first_stage() || (mesh.last_stage() && (tied || embed.tables().drafter.wanted))) {
    embed_ = declare(embed);
    if (!tied) embed_.mark_lookup_only();
  }
  if (mesh.last_stage()) head_ = tied ? embed_ : declare(head);
  if (tied) embed.ignore(head.join("weight"), "tie_word_embeddings: the embedding is the head");
}

void Vocab::take_own(Scope embed, Scope head) {
  take_own(embed, embed_name_, embed_);
  take_own(head, head_name_, head_);
}

void Vocab::take_own(Scope s, const std::string& shared, Matrix& matrix) {
  const auto& stores_own = s.tables().drafter.stores_own;
  const std::string own = s.join("weight");
  if (stores_own && stores_own(own, shared)) {
    matrix = declare(s);
  } else {
    s.ignore(own, "the same as " + shared);
  }
}

Tensor Vocab::embed(Ctx& c, std::span<const int32_t> ids) const {
  Tensor x = c.alloc(static_cast<int64_t>(ids.size()), hidden_);
  ops::run(c.stream, ops::Embed{x, embed_, ids, local_.begin});
  if (axis_->size() > 1) axis_->all_reduce(c.stream, x);
  return x;
}

Tensor Vocab::logits(Ctx& c, Tensor x) const {
  Tensor local = c.alloc(x.dim(0), local_.count);
  ops::run(c.stream, ops::Linear{.out = local, .x = x, .w = head_, .precision = c.precision});
  if (axis_->size() == 1) return local;
  Tensor all = c.alloc(x.dim(0), vocab_);
  axis_->all_gather(c.stream, all, local);
  return all;
}

}  // namespace atom::nn
