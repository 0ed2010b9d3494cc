// The --device flag.
#pragma once
#include <string>

#include "tensor/tensor.h"

namespace atom {

// auto (the first GPU if this build and the machine have one, else cpu), cpu, cuda, cuda:i, hip or hip:i.
// Throws Error if there is no such device.
Device parse_device(const std::string& text);

// "cpu", "cuda:0"
std::string to_string(Device device);

}  // namespace atom
