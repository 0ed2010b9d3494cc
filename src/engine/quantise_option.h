// --quantize: a model whose files hold plain numbers as if it had been published quantised.
#pragma once
#include <functional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/model_files.h"
#include "runtime/quantisation.h"

namespace atom {

// What `target` makes of the model. `checkpoint` may be null: then only the config is there. Throws Error
// (invalid) for a model that is quantised already.
Quantisation plan_quantisation(const ModelFiles& files, const Checkpoint* checkpoint,
                               const std::string& target);

// Makes config and headers those of the quantised model. Bytes of `checkpoint` are computed by
// compute_quantised().
void declare_quantised(const Quantisation& quantisation, ModelFiles& files, Checkpoint* checkpoint);
void compute_quantised(const Quantisation& quantisation, Checkpoint& checkpoint, int threads,
                       const std::function<void(int64_t done, int64_t total)>& progress);

}  // namespace atom
