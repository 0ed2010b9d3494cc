// The account of a checkpoint against a model: every expected piece with the tensor that feeds it, every
// stored tensor with its use. Made from headers alone, before a byte of weights is read.
#pragma once
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "nn/param.h"

namespace atom {

// One piece of one parameter and where it is stored.
struct PieceAccount {
  const ParamEntry* param = nullptr;
  const Piece* piece = nullptr;
  const Source* source = nullptr;  // the one that exists; null: missing
  const StoredTensor* stored = nullptr;
  // The scales of a quantised matrix; null: it has none.
  const StoredTensor* scale = nullptr;
  int64_t block_rows = 0, block_cols = 0;  // of the stored matrix that share one scale
  std::string problem;                     // empty: fine

  DType dtype() const;  // of the elements, which the file may only know as bytes
};

struct StoredAccount {
  const StoredTensor* stored = nullptr;
  std::string used_by;  // path of the parameter
  std::string ignored;  // the reason; both empty: nobody claims it
};

struct Account {
  std::vector<PieceAccount> pieces;
  std::vector<StoredAccount> stored;
  std::vector<std::string> problems() const;  // missing, mis-shaped, mis-typed and unclaimed, one line each
};

// `tables` must be those of the whole model (one rank) for unclaimed tensors to be told.
Account account(const ModelTables& tables, const Checkpoint& checkpoint);

// Throws Error (invalid) with every problem if there is one.
void require_complete(const Account& account, const std::string& checkpoint_name);

// Resolves one piece: its source, or what is wrong with it.
PieceAccount resolve(const ParamEntry& param, const Piece& piece, const Checkpoint& checkpoint);

}  // namespace atom
