// tool_choice: the text that forces a model to call a tool.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/response_format.h"

namespace atom::text {

// The text with which an answer that must call a tool begins, for the server to append to the prompt and to
// push to the response parser before the generated text. With `name` it ends where the arguments begin, so
// the model can only call this tool; without, it ends where the name begins (tool_choice required).
// `in_reasoning`: the prompt has opened reasoning, which the text closes first. Error (invalid) if the format
// has no calls.
Result<std::string> forced_call_prefix(const FormatChoice& format, std::string_view name, bool in_reasoning);

// An id for call `index` of an answer, in the shape that the checkpoint's template expects when the call
// comes back in a later request: functions.NAME:INDEX (Kimi K2), nine letters and digits (Mistral), else
// call_ and 24 of them. `random` should differ from call to call.
std::string tool_call_id(const FormatChoice& format, int index, std::string_view name, uint64_t random);

}  // namespace atom::text
