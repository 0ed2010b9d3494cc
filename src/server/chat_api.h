// POST /v1/chat/completions in OpenAI's form.
#pragma once
#include "server/generation.h"
#include "server/served_model.h"

namespace atom::server {

// Throws ApiError.
GenerationPlan plan_chat(const Json& body, const ServedModel& model);

}  // namespace atom::server
