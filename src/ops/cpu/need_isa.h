// Refusals of implementations that need an instruction set.
#pragma once
#include "ops/cpu/cpu_features.h"
#include "tensor/stream.h"

namespace atom::ops::cpu {

template <class Op>
const char* need_avx2(const Stream&, const Op&) {
  return cpu_features().avx2 ? nullptr : "needs AVX2";
}
template <class Op>
const char* need_avx512(const Stream&, const Op&) {
  return cpu_features().avx512 ? nullptr : "needs AVX-512";
}

}  // namespace atom::ops::cpu
