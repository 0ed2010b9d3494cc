// /v1/responses in OpenAI's form: POST, and GET and DELETE of stored ones.
#pragma once
#include <string>

#include "server/generation.h"
#include "server/response_store.h"
#include "server/served_model.h"

namespace atom::server {

// `store` must outlive the answer; `key` owns what is stored. Throws ApiError.
GenerationPlan plan_response(const Json& body, const ServedModel& model, ResponseStore& store,
                             const std::string& key);
Json stored_response(const std::string& id, const ResponseStore& store, const std::string& key);
Json delete_response(const std::string& id, ResponseStore& store, const std::string& key);

}  // namespace atom::server
