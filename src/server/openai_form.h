// What OpenAI's chat and text completions share: events, usage and the fields common to both.
#pragma once
#include <string>

#include "engine/request.h"
#include "server/fields.h"

namespace atom::server {

// "data: {...}\n\n"
void append_event(std::string& out, const Json& data);
// "event: name\ndata: {...}\n\n"
void append_event(std::string& out, const char* name, const Json& data);
std::string dump(const Json& json);  // ill-formed UTF-8 becomes U+FFFD

struct UsageSum {
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  // Samples of one prompt count it once.
  void add(const Usage& usage, bool first_of_prompt);
  Json json() const;
};

struct StreamFields {
  bool stream = false;
  bool include_usage = false;
};
StreamFields read_stream_fields(Fields& fields);

// user, metadata and the like, which change nothing here; store only as false.
void read_harmless(Fields& fields);

}  // namespace atom::server
