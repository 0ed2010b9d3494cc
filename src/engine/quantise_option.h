// --quantize: a model whose files hold plain numbers as if it had been published quantised.
#pragma once
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/model_files.h"
#include "runtime/quantisation.h"

namespace atom {

// What `target` makes of the model. `checkpoint` may be null: then only the config is there. Throws Error
// (invalid) for a model that is quantised already.
Quantisation plan_quantisation(const ModelFiles& files, const Checkpoint* checkpoint,
                               const std::string& target);

// The same, and makes config and headers those of the quantised model. Bytes of `checkpoint` are computed by
// compute_quantised().
Quantisation declare_quantised(ModelFiles& files, Checkpoint* checkpoint, const std::string& target);
void compute_quantised(const Quantisation& quantisation, Checkpoint& checkpoint, int threads,
                       const JobProgress::Report& report);

}  // namespace atom
