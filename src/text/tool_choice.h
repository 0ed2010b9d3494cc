// Ids of tool calls.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "text/response_format.h"

namespace atom::text {

// An id for call `index` of an answer, in the shape that the checkpoint's template expects when the call
// comes back in a later request. `random` should differ from call to call.
std::string tool_call_id(const FormatChoice& format, int index, std::string_view name, uint64_t random);

}  // namespace atom::text
