// The build without a GPU backend: there are no devices that could have ranks.
#include "comm/device_communicator.h"

namespace atom {

std::vector<std::unique_ptr<Communicator>> device_communicators(std::span<const Device>, Traffic, double) {
  CHECK(false, "this build has no GPU backend");
  return {};
}

}  // namespace atom
