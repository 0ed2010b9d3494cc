// An op is a struct of arguments: outputs, inputs, scalars. run() checks it and hands it to the first
// implementation that does not refuse. Each list is in order of preference and ends in an entry that refuses
// nothing valid (`*.composed` or `*.ref`), the oracle of all others.
// ATOM_TRACE_OPS=1 prints who ran and why others did not; ATOM_OPS=linear=ref,norm=ref pins entries by the
// text after "<op>." for bisecting.
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

// The ordered list of an op; one explicit specialisation beside each op's checks.
template <class Op>
std::span<const Impl<Op>> impls();

// Shapes, types and devices: CHECKs, always on. One overload per op.
// void check(const Op&);

bool trace_enabled();
void trace(const char* name, const char* refusal);
// True unless ATOM_OPS pins this op to another entry.
bool allowed(const char* name);
[[noreturn]] void no_implementation(const char* first_name);

template <class Op>
void run(Stream& stream, const Op& op) {
  check(op);
  const auto list = impls<Op>();
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
