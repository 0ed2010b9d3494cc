// GPU implementations that take the chain of small ops of a step of decodes in one kernel, for
// lists_decode.cc. As kernels.h says of its own.
#pragma once
#include "ops/attend.h"
#include "ops/gated_delta.h"
#include "ops/router.h"

namespace atom::ops::gpu_kernels {

const char* refuse_attend_decode(const Stream& stream, const Attend& op);
void attend_decode(Stream& stream, const Attend& op);
// With a block for each row and group of heads, whatever their number; takes no scratch.
void attend_unsplit(Stream& stream, const Attend& op);
// Decodes and prompts in one step: the former as above.
const char* refuse_attend_mixed(const Stream& stream, const Attend& op);
void attend_mixed(Stream& stream, const Attend& op);
const char* refuse_gated_delta_decode(const Stream& stream, const GatedDelta& op);
void gated_delta_decode(Stream& stream, const GatedDelta& op);
const char* refuse_route_few(const Stream& stream, const RouteRows& op);
void route_few(Stream& stream, const RouteRows& op);
// The same. `shows_x`: the kernel after it may read x, and what the norm before it reads, before it waits.
void route_few_then(Stream& stream, const RouteRows& op, bool shows_x);

}  // namespace atom::ops::gpu_kernels
