// The lists on GPUs of ops that are one kernel in a step of decodes and a chain of ops otherwise.
#include "ops/gpu/decode_kernels.h"

namespace atom::ops {
namespace {

using namespace gpu_kernels;

constexpr Impl<Attend> kAttend[] = {
    {"attend.decode", refuse_attend_decode, attend_decode},
    {"attend.composed", accept_all<Attend>, attend_composed},
};

}  // namespace

template <>
std::span<const Impl<Attend>> gpu_impls<Attend>() {
  return kAttend;
}

}  // namespace atom::ops
