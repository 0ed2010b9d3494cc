#include "server/openai_form.h"

namespace atom::server {

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

void append_event(std::string& out, const Json& data) {
  out += "data: ";
  out += dump(data);
  out += "\n\n";
}

void append_event(std::string& out, const char* name, const Json& data) {
  out += "event: ";
  out += name;
  out += '\n';
  append_event(out, data);
}

void UsageSum::add(const Usage& usage, bool first_of_prompt) {
  if (first_of_prompt) {
    prompt_tokens += usage.prompt_tokens;
    cached_tokens += usage.cached_tokens;
  }
  output_tokens += usage.output_tokens;
}

Json UsageSum::json() const {
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", output_tokens},
          {"total_tokens", prompt_tokens + output_tokens},
          {"prompt_tokens_details", {{"cached_tokens", cached_tokens}}}};
}

StreamFields read_stream_fields(Fields& fields) {
  StreamFields result;
  result.stream = fields.boolean("stream").value_or(false);
  if (const Json* options = fields.object("stream_options")) {
    if (!result.stream) throw bad_field("stream_options", "goes with stream: true");
    Fields inner(*options, "stream_options");
    result.include_usage = inner.boolean("include_usage").value_or(false);
    inner.only("include_obfuscation", false, "padding is not supported; leave it out");
    inner.done();
  }
  return result;
}

void read_harmless(Fields& fields) {
  fields.harmless({"user", "metadata", "safety_identifier", "prompt_cache_key"});
  fields.only("store", false, "completions are not stored; use /v1/responses");
  if (const auto tier = fields.text("service_tier"); tier && *tier != "auto" && *tier != "default") {
    throw bad_field("service_tier", "only \"auto\" and \"default\" are supported; see priority");
  }
}

}  // namespace atom::server
