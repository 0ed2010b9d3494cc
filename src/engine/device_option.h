// The --device flag.
#pragma once
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace atom {

// The device of each of `ranks` ranks: auto (the first GPUs if this build and the machine have as many, else
// the CPU), cpu, cuda or hip (the first ones), or those that are named: cuda:1, cuda:0,1. A device that is
// named more than once has several ranks. To be called before GPUs are used in any way. Throws Error if there
// are no such devices.
std::vector<Device> parse_devices(const std::string& text, int ranks = 1);

// "cpu", "cuda:0"
std::string to_string(Device device);

}  // namespace atom
