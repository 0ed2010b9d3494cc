#include "nn/context.h"

namespace atom {

void Ctx::observe(Observer::Choice kind, const std::string& block, Tensor choices) const {
  if (observer == nullptr) return;
  CHECK(choices.dtype == DType::i32 && choices.contiguous(), "choices of {} are no list", block);
  if (stream.device().kind == Device::cpu) return observer->observe(kind, block, choices);
  std::vector<int32_t> host(static_cast<size_t>(choices.elements()));
  stream.queue().copy_to_host(host.data(), choices.data, choices.bytes());
  stream.queue().wait();
  observer->observe(kind, block, make_tensor(host.data(), DType::i32, {choices.dim(0), choices.dim(1)}));
}

}  // namespace atom
