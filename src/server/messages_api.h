// POST /v1/messages and /v1/messages/count_tokens in Anthropic's form.
#pragma once
#include "server/generation.h"
#include "server/served_model.h"

namespace atom::server {

// Both throw ApiError.
GenerationPlan plan_messages(const Json& body, const ServedModel& model);
Json count_message_tokens(const Json& body, const ServedModel& model);

}  // namespace atom::server
