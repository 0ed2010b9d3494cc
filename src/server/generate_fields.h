// The fields that choose tokens, in the names that OpenAI's clients and other engines use, into an engine
// Request.
#pragma once
#include <string>
#include <vector>

#include "server/fields.h"
#include "server/served_model.h"

namespace atom::server {

inline constexpr int64_t kMaxSamples = 128;
inline constexpr size_t kMaxStops = 16;  // OpenAI's own limit is 4

// temperature, top_p, top_k, min_p, penalties, logit_bias, seed, min_tokens, ignore_eos, stop,
// stop_token_ids, include_stop_str_in_output, priority, cache_salt, n. Not read: lengths and logprobs, which
// the protocols spell differently.
void read_sampling(Fields& fields, const ServedModel& model, Request& request);

// Texts that end an answer: a string or a list of strings under `key`.
std::vector<std::string> read_stops(Fields& fields, std::string_view key);

// `timeout_s` as a time of the clock now_us(); 0 without.
int64_t read_deadline(Fields& fields);

// Tokens that an answer may have: `wanted`, cut to the room behind the prompt. Nothing wanted: all the room.
int64_t clamp_tokens(std::optional<int64_t> wanted, int64_t prompt_tokens, const ServedModel& model);

}  // namespace atom::server
