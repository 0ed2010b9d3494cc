#include "text/tool_choice.h"

#include <fmt/format.h>

namespace atom::text {

std::string tool_call_id(const FormatChoice&, int, std::string_view, uint64_t random) {
  return fmt::format("call_{:024x}", random);
}

}  // namespace atom::text
