// Token embedding and output head, tied or not, cut by vocabulary rows.
#pragma once
#include "nn/linear.h"

namespace atom::nn {

class Vocab {
 public:
  // Declares `embed` on the first stage and `head` on the last; a tied head is the embedding itself.
  Vocab(Scope embed, Scope head, int64_t vocab, int64_t hidden, bool tied);
  Tensor embed(Ctx& c, std::span<const int32_t> ids) const;  // [ids, hidden], whole on every rank
  Tensor logits(Ctx& c, Tensor x) const;                     // [rows, vocab], whole on every rank

 private:
  int64_t vocab_, hidden_;
  Range local_;  // vocabulary rows of this rank
  Communicator* axis_;
  Matrix embed_, head_;
};

}  // namespace atom::nn
