// GPU implementations that take the chain of small ops of a step of decodes in one kernel, for
// lists_decode.cc. As kernels.h says of its own.
#pragma once
#include "ops/attend.h"

namespace atom::ops::gpu_kernels {

const char* refuse_attend_decode(const Stream& stream, const Attend& op);
void attend_decode(Stream& stream, const Attend& op);

}  // namespace atom::ops::gpu_kernels
