#include "server/generate_fields.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "base/clock.h"

namespace atom::server {
namespace {

constexpr size_t kMaxBiases = 4096;
constexpr size_t kMaxStopIds = 256;
constexpr size_t kMaxSaltBytes = 256;  // every sample keeps one

void read_logit_bias(Fields& fields, const ServedModel& model, SamplingParams& sampling) {
  const Json* bias = fields.object("logit_bias");
  if (bias == nullptr) return;
  if (bias->size() > kMaxBiases) throw bad_field("logit_bias", "has more than {} entries", kMaxBiases);
  for (const auto& [key, value] : bias->items()) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc{} || end != key.data() + key.size() || id < 0 || id >= model.vocab) {
      throw bad_field("logit_bias", "\"{}\" is not a token id in [0, {})", key, model.vocab);
    }
    if (!value.is_number()) throw bad_field("logit_bias", "the value of \"{}\" must be a number", key);
    const double amount = value.get<double>();
    if (!(amount >= -100 && amount <= 100))
      throw bad_field("logit_bias", "{} is outside [-100, 100]", value.dump());
    sampling.logit_bias.emplace_back(id, static_cast<float>(amount));
  }
}

}  // namespace

std::vector<std::string> read_stops(Fields& fields, std::string_view key) {
  const Json* value = fields.find(key);
  const std::string path = fields.path(key);
  if (value == nullptr) return {};
  std::vector<std::string> stops;
  if (value->is_string()) {
    stops.push_back(value->get<std::string>());
  } else if (value->is_array()) {
    if (value->size() > kMaxStops)
      throw bad_field(path, "has {} texts; at most {} are taken", value->size(), kMaxStops);
    for (const Json& text : *value) {
      if (!text.is_string()) throw bad_field(path, "must be a string or a list of strings");
      stops.push_back(text.get<std::string>());
    }
  } else {
    throw bad_field(path, "must be a string or a list of strings");
  }
  for (const std::string& stop : stops) {
    if (stop.empty()) throw bad_field(path, "an empty text would stop at once");
    if (stop.size() > 1024) throw bad_field(path, "a text has {} bytes; at most 1024 are taken", stop.size());
  }
  return stops;
}

void read_sampling(Fields& fields, const ServedModel& model, Request& request) {
  request.sampling = model.default_sampling;
  SamplingParams& s = request.sampling;
  const auto number = [&](std::string_view key, double low, double high, float& target) {
    if (const auto value = fields.number(key, low, high)) target = static_cast<float>(*value);
  };
  number("temperature", 0, 100, s.temperature);
  number("top_p", 0, 1, s.top_p);
  if (s.top_p <= 0) throw bad_field("top_p", "must be more than 0");
  number("min_p", 0, 1, s.min_p);
  number("presence_penalty", -2, 2, s.presence_penalty);
  number("frequency_penalty", -2, 2, s.frequency_penalty);
  number("repetition_penalty", 0, 100, s.repetition_penalty);
  if (s.repetition_penalty <= 0) throw bad_field("repetition_penalty", "must be more than 0");
  constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
  // -1 is how other engines write "off".
  if (const auto k = fields.integer("top_k", -1, kMaxInt))
    s.top_k = static_cast<int32_t>(std::max<int64_t>(*k, 0));
  if (const auto m = fields.integer("min_tokens", 0, kMaxInt)) s.min_tokens = static_cast<int32_t>(*m);
  if (const auto seed = fields.integer("seed", std::numeric_limits<int64_t>::min() + 1, INT64_MAX)) {
    s.seed = static_cast<uint64_t>(*seed);
  }
  if (const auto ignore = fields.boolean("ignore_eos")) s.ignore_eos = *ignore;
  if (const Json* ids = fields.array("stop_token_ids", kMaxStopIds)) {
    for (const Json& id : *ids) {
      if (!id.is_number_integer() || id < 0 || id >= model.vocab) {
        throw bad_field("stop_token_ids", "{} is not a token id in [0, {})", id.dump(), model.vocab);
      }
      s.stop_ids.push_back(id.get<int32_t>());
    }
  }
  read_logit_bias(fields, model, s);
  if (const auto n = fields.integer("n", 1, kMaxSamples)) request.n = static_cast<int32_t>(*n);
  request.stop = read_stops(fields, "stop");
  if (const auto keep = fields.boolean("include_stop_str_in_output")) request.include_stop = *keep;
  if (const auto priority = fields.integer("priority", -1000, 1000))
    request.priority = static_cast<int>(*priority);
  if (const auto salt = fields.text("cache_salt")) {
    if (salt->size() > kMaxSaltBytes)
      throw bad_field("cache_salt", "has {} bytes; at most {} are taken", salt->size(), kMaxSaltBytes);
    request.cache_salt = *salt;
  }
}

int64_t read_deadline(Fields& fields) {
  const auto seconds = fields.number("timeout_s", 0.001, 86400);
  return seconds ? now_us() + static_cast<int64_t>(*seconds * 1e6) : 0;
}

int64_t clamp_tokens(std::optional<int64_t> wanted, int64_t prompt_tokens, const ServedModel& model) {
  model.check_prompt_length(prompt_tokens);
  const int64_t room = model.max_model_len - prompt_tokens;
  return std::min(wanted.value_or(room), room);
}

}  // namespace atom::server
