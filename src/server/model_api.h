// The endpoints that compute nothing: the model list, tokenizing, and the refusal of embeddings.
#pragma once
#include <string>

#include "server/http_message.h"
#include "server/served_model.h"

namespace atom::server {

Reply json_reply(const Json& body, int status = 200);

Json model_list(const ServedModel& model);                            // GET /v1/models
Json model_entry(const ServedModel& model, const std::string& name);  // GET /v1/models/NAME
Json tokenize(const Json& body, const ServedModel& model);            // POST /tokenize
Json detokenize(const Json& body, const ServedModel& model);          // POST /detokenize
[[noreturn]] void refuse_embeddings(const ServedModel& model);        // POST /v1/embeddings

}  // namespace atom::server
