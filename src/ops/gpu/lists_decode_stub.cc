// The build without a GPU backend: every list is empty.
#include "ops/attend.h"

namespace atom::ops {

template <>
std::span<const Impl<Attend>> gpu_impls<Attend>() {
  return {};
}

}  // namespace atom::ops
