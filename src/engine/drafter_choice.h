// Whether to speculate with a checkpoint, and with what; and the declaration of a model, with or without
// drafter.
#pragma once
#include <memory>
#include <optional>

#include "checkpoint/checkpoint.h"
#include "checkpoint/model_files.h"
#include "runtime/model_instance.h"

namespace atom {

// The declaration of the whole model on one rank, for accounts. Owns its tables.
class ModelDeclaration {
 public:
  explicit ModelDeclaration(const ModelFiles& files, const DrafterOptions& drafter = {}, Device device = {});
  const ModelTables& tables() const { return tables_; }

 private:
  ModelTables tables_;
  std::unique_ptr<nn::Model> model_;
};

struct DrafterChoice {
  int64_t drafts = 0;     // most tokens drafted ahead
  bool adaptive = false;  // fewer where they do not pay
  DrafterOptions drafter;
};

// `asked` as ModelOptions::num_speculative_tokens; `checkpoint` is null for dummy weights, and must outlive
// the choice. Throws Error (invalid) if drafts are asked for and the model or the checkpoint has no complete
// drafter.
DrafterChoice choose_drafter(const ModelFiles& files, const Checkpoint* checkpoint, std::optional<int> asked);

// A wanted drafter, which shares the embedding and the head unless the checkpoint has others for it.
DrafterOptions wanted_drafter(const Checkpoint* checkpoint);

}  // namespace atom
