#include "ops/op.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

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

std::atomic<bool> references_alone = false;

}  // namespace

bool trace_enabled() {
  static const bool enabled = std::getenv("ATOM_TRACE_OPS") != nullptr;
  return enabled;
}

void trace(const char* name, const char* refusal) {
  std::fprintf(stderr, "op %-32s %s\n", name, refusal == nullptr ? "runs" : refusal);
}

void use_references_alone(bool on) { references_alone = on; }

bool allowed(const char* name) {
  const auto& list = pins();
  const bool any = !references_alone.load(std::memory_order_relaxed);
  if (list.empty() && any) [[likely]]
    return true;
  const char* dot = std::strchr(name, '.');
  if (dot == nullptr) return true;
  if (!any) return std::strcmp(dot, ".ref") == 0 || std::strcmp(dot, ".composed") == 0;
  for (const auto& [op, entry] : list) {
    if (std::string_view(name, dot - name) == op) return entry == dot + 1;
  }
  return true;
}

void no_implementation(const char* first_name) {
  if (!pins().empty())
    throw invalid("ATOM_OPS: no entry like {} takes this op when only the pinned one may", first_name);
  CHECK(false, "no implementation accepts this op (list of {}); see ATOM_TRACE_OPS", first_name);
  std::abort();
}

}  // namespace atom::ops
