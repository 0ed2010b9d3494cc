// Moves a rank's parameters from the host to its device.
#pragma once
#include "runtime/loader.h"

namespace atom {

// Copies what `host` gave the parameters to `device` and points them there. The parts of a matrix become one
// if they have one type. Rows are read from the mapped files by many threads into pinned memory, from where
// they are copied while the next are read. Throws Error for a type that has no GPU kernel, before anything is
// copied, and when the device has too little memory.
Weights upload_weights(ModelTables& tables, Weights host, const LoadOptions& options, Device device);

}  // namespace atom
