// An op is a struct of arguments: outputs, inputs, scalars. run() checks it and hands it to the first
// implementation that does not refuse. Each list is in order of preference and ends in an entry that refuses
// nothing valid (`*.composed` or `*.ref`), the oracle of all others.
// ATOM_TRACE_OPS=1 prints who ran and why others did not; ATOM_OPS=linear=ref,norm=ref pins entries by the
// text after "<op>." for bisecting.
// Each kind of device has its own lists: an op never leaves the device of its stream.
#pragma once
#include <span>
#include <string_view>

#include "tensor/stream.h"

namespace atom::ops {

template <class Op>
struct Impl {
  const char* name;                                 // "linear.amx"
  const char* (*refuse)(const Stream&, const Op&);  // the reason, or null
  void (*run)(Stream&, const Op&);
};

// The ordered list of an op on the CPU; one explicit specialisation beside each op's checks.
template <class Op>
std::span<const Impl<Op>> impls();

// The list on GPUs. Ops that have one declare a specialisation beside their struct; it is empty in a build
// without a GPU backend.
template <class Op>
std::span<const Impl<Op>> gpu_impls() {
  return {};
}

template <class Op>
std::span<const Impl<Op>> impls(Device device) {
  return device.kind == Device::cpu ? impls<Op>() : gpu_impls<Op>();
}

// Shapes, types and that all tensors lie on one device: CHECKs, always on. One overload per op. Spans of an
// op (ids, rows, sequences) lie on its device too; their content is checked where the host can read it. void
// check(const Op&);

// Where an op's tensors lie. Ops that can run on a GPU have an overload beside `check`; all others are the
// CPU's. Device device_of(const Op&);
template <class Op>
Device device_of_any(const Op& op) {
  if constexpr (requires { device_of(op); }) return device_of(op);
  return {};
}

bool trace_enabled();
void trace(const char* name, const char* refusal);
// True unless ATOM_OPS pins this op to another entry, or references alone are wanted and this is none.
bool allowed(const char* name);
// While `on`, every op of the process goes to the last entries, `*.ref` and `*.composed`. Not while others
// compute.
void use_references_alone(bool on);
[[noreturn]] void no_implementation(const char* first_name);

template <class Op>
void run(Stream& stream, const Op& op) {
  check(op);
  CHECK(device_of_any(op) == stream.device(), "an op's tensors and its stream are on different devices");
  const auto list = impls<Op>(stream.device());
  const bool tracing = trace_enabled();
  for (const Impl<Op>& impl : list) {
    const char* refusal = allowed(impl.name) ? impl.refuse(stream, op) : "another entry is pinned";
    if (tracing) [[unlikely]]
      trace(impl.name, refusal);
    if (refusal == nullptr) return impl.run(stream, op);
  }
  no_implementation(list.empty() ? "?" : list.front().name);
}

template <class Op>
const char* accept_all(const Stream&, const Op&) {
  return nullptr;
}

}  // namespace atom::ops
