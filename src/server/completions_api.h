// POST /v1/completions in OpenAI's legacy form: raw prompts, text or token ids.
#pragma once
#include "server/generation.h"
#include "server/served_model.h"

namespace atom::server {

// Throws ApiError.
GenerationPlan plan_completions(const Json& body, const ServedModel& model);

// One token id of a client. Throws ApiError naming `path`.
int32_t read_token_id(const Json& value, const ServedModel& model, const std::string& path);

}  // namespace atom::server
