// RMS norm of vectors spread over ranks: each rank's squares, one reduction, the scaling.
#pragma once
#include "ops/spread_norm.h"

namespace atom::ops::cpu {

void spread_rms_norm(Stream& stream, const SpreadRmsNorm& op);

}  // namespace atom::ops::cpu
