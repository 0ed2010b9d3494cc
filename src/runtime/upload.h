// Moves a rank's parameters from the host to its device.
#pragma once
#include <string>

#include "runtime/loader.h"

namespace atom {

// Why the matrices of `tables` cannot be used on a GPU: the first that is stored in a type that no kernel
// reads, or unlike the other experts of its layer. Empty: they can. Made from headers; `checkpoint` is null
// for dummy weights. What `checkpoint` lacks is not looked at.
std::string upload_problem(const ModelTables& tables, const Checkpoint* checkpoint);

// Copies what `host` gave the parameters to `device` and points them there. Matrices stay as they are stored,
// but GGUF blocks become plain numbers of type `wide`, f32 or bf16, and on Hopper the MXFP4 of experts is cut
// into pieces (tensor/mxfp4_pieces.h) unless `wide` is f32. The parts of a matrix become one if their
// types and scales allow it; the matrices of a layer's experts lie at equal distances. Rows are read from the
// mapped files by many threads into pinned memory, from where they are copied while the next are read. There
// is no upload_problem. Throws Error when the device has too little memory.
Weights upload_weights(ModelTables& tables, Weights host, const LoadOptions& options, DType wide,
                       Device device);

// Points the parameters to places where there is no memory, laid out as upload_weights would, and returns the
// bytes that it would take of `device`: to plan a step without loading.
int64_t place_nowhere(ModelTables& tables, DType wide, Device device);

}  // namespace atom
