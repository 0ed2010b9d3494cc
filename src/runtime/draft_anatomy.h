// How large the layers are that predict further tokens.
#pragma once
#include "base/json.h"

namespace atom {

struct DraftAnatomy {
  int64_t layers = 0;
  int64_t parameters = 0;  // without copies of the embedding and the head that some checkpoints store
};

// Zero layers where the config announces none.
DraftAnatomy draft_anatomy(const Json& config);

}  // namespace atom
