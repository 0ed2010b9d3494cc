// Token embedding and output head, tied or not, cut by vocabulary rows.
#pragma once
#include "nn/linear.h"

namespace atom::nn {

class Vocab {
 public:
  // Declares `embed` on the first stage, and on the last if a drafter is wanted, and `head` on the last; a
  // tied head is the embedding itself.
  Vocab(Scope embed, Scope head, int64_t vocab, int64_t hidden, bool tied);
  // A copy shares both matrices. This makes it take those at `embed` and `head` instead, each only if the
  // checkpoint stores it there and it differs from the shared one.
  void take_own(Scope embed, Scope head);
  Tensor embed(Ctx& c, std::span<const int32_t> ids) const;  // [ids, hidden], whole on every rank
  Tensor logits(Ctx& c, Tensor x) const;                     // [rows, vocab], whole on every rank

 private:
  Matrix declare(Scope s) const;
  void take_own(Scope s, const std::string& shared, Matrix& matrix);

  int64_t vocab_, hidden_;
  Range local_;  // vocabulary rows of this rank
  std::string embed_name_, head_name_;
  Communicator* axis_;
  Matrix embed_, head_;
};

}  // namespace atom::nn
