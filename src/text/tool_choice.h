// How calls begin, and their ids.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/response_format.h"

namespace atom::text {

// The text with which a call begins, up to where its arguments begin; with an empty `name`, up to where the
// name begins. Error (invalid) if the format has no calls.
Result<std::string> call_prefix(const FormatChoice& format, std::string_view name);

// Texts at which the response parser takes free text for a call, the one that call_prefix() begins with
// first. None where nothing tells a call from other text (Llama 3's JSON) or it is a message of its own
// (harmony).
std::vector<std::string> call_marks(ResponseFormat format);

// An id for call `index` of an answer, in the shape that the checkpoint's template expects when the call
// comes back in a later request: functions.NAME:INDEX (Kimi K2), nine letters and digits (Mistral), else
// call_ and 24 of them. `random` should differ from call to call.
std::string tool_call_id(const FormatChoice& format, int index, std::string_view name, uint64_t random);

}  // namespace atom::text
