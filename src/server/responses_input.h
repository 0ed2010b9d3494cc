// The input of POST /v1/responses: items of OpenAI's form into the messages that chat templates know.
#pragma once
#include "base/json.h"

namespace atom::server {

// Appends to `messages`. Throws ApiError naming the item.
void add_response_input(const Json& input, Json& messages);

}  // namespace atom::server
