// The post-processor of a tokenizer.json: the special tokens put around an encoded text.
#pragma once
#include <cstdint>
#include <vector>

#include "text/tokenizer_component.h"

namespace atom::text {

struct PostProcessor {
  std::vector<int32_t> before, behind;

  PostProcessor() = default;
  explicit PostProcessor(const Component& config);

 private:
  void add(const Component& config);
  void add_template(const Component& config);
};

}  // namespace atom::text
