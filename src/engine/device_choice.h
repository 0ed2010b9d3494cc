// On which device a model runs.
#pragma once
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/model_files.h"
#include "tensor/tensor.h"

namespace atom {

struct ModelOptions;

// `wanted` as parse_devices() says, or the CPU if it is a GPU that --device auto found and that cannot do
// what the options and the model ask, which is logged. A GPU that was asked for by name and cannot is an
// Error (invalid). `checkpoint` is null for dummy weights.
Device choose_device(const ModelOptions& options, const ModelFiles& files, const Checkpoint* checkpoint,
                     Device wanted);

// What `gpu` cannot do of a model: a layer without kernels there, or a matrix of a type that they do not
// read. Empty: it can do all.
std::string gpu_problem(const ModelFiles& files, const Checkpoint* checkpoint, Device gpu);

}  // namespace atom
