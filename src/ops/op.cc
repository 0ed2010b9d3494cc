#include "ops/op.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace atom::ops {
namespace {

// ATOM_OPS as (op, entry) pairs.
const std::vector<std::pair<std::string, std::string>>& pins() {
  static const auto list = [] {
    std::vector<std::pair<std::string, std::string>> pairs;
    const char* env = std::getenv("ATOM_OPS");
    std::string_view text = env == nullptr ? "" : env;
    while (!text.empty()) {
      const size_t comma = std::min(text.find(','), text.size());
      const std::string_view item = text.substr(0, comma);
      if (const size_t eq = item.find('='); eq != std::string_view::npos) {
        pairs.emplace_back(item.substr(0, eq), item.substr(eq + 1));
      }
      text.remove_prefix(std::min(comma + 1, text.size()));
    }
    return pairs;
  }();
  return list;
}

}  // namespace

bool trace_enabled() {
  static const bool enabled = std::getenv("ATOM_TRACE_OPS") != nullptr;
  return enabled;
}

void trace(const char* name, const char* refusal) {
  std::fprintf(stderr, "op %-32s %s\n", name, refusal == nullptr ? "runs" : refusal);
}

bool allowed(const char* name) {
  const auto& list = pins();
  if (list.empty()) [[likely]]
    return true;
  const char* dot = std::strchr(name, '.');
  if (dot == nullptr) return true;
  for (const auto& [op, entry] : list) {
    if (std::string_view(name, dot - name) == op) return entry == dot + 1;
  }
  return true;
}

void no_implementation(const char* first_name) {
  CHECK(false, "no implementation accepts this op (list of {}); see ATOM_TRACE_OPS and ATOM_OPS", first_name);
  std::abort();
}

}  // namespace atom::ops
