// Moves a rank's parameters from the host to its device.
#pragma once
#include <string>

#include "runtime/loader.h"

namespace atom {

// Why the matrices of `tables` cannot be used on a GPU: the first that is stored in a type that no kernel
// reads. Empty: they can. Made from headers; `checkpoint` is null for dummy weights. What `checkpoint` lacks
// is not looked at.
std::string upload_problem(const ModelTables& tables, const Checkpoint* checkpoint);

// Copies what `host` gave the parameters to `device` and points them there. The parts of a matrix become one
// if they have one type. Rows are read from the mapped files by many threads into pinned memory, from where
// they are copied while the next are read. There is no upload_problem. Throws Error when the device has too
// little memory.
Weights upload_weights(ModelTables& tables, Weights host, const LoadOptions& options, Device device);

}  // namespace atom
