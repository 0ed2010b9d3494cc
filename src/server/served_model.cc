#include "server/served_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/api_error.h"

namespace atom::server {

void ServedModel::check_name(const std::string& requested) const {
  if (std::find(names.begin(), names.end(), requested) != names.end()) return;
  throw ApiError(404, "model_not_found",
                 fmt::format("model: \"{}\" is not served here; use \"{}\"", requested, name()), "model");
}

const text::Tokenizer& ServedModel::tokenizer() const {
  if (!text->has_tokenizer()) {
    throw ApiError(400, "no_tokenizer",
                   "this model has no tokenizer: only /v1/completions with token ids is served");
  }
  return text->tokenizer();
}

void ServedModel::check_prompt_length(int64_t tokens) const {
  if (tokens < max_model_len) return;
  throw ApiError(
      400, "context_length_exceeded",
      fmt::format("the prompt has {} tokens, and the longest sequence is {} tokens, at least one of them "
                  "generated; shorten the prompt",
                  tokens, max_model_len),
      "prompt");
}

bool ServedModel::template_reads(std::string_view variable) const {
  return text->has_chat_template() && text->chat_template().reads(variable);
}

std::vector<int32_t> ServedModel::encode_text(const std::string& text) const {
  std::vector<int32_t> ids = tokenizer().encode(text);
  // A text that writes the BOS itself must not get a second one.
  const std::vector<int32_t> frame = tokenizer().encode("");
  if (!frame.empty() && ids.size() > frame.size() && ids[0] == frame[0] && ids[1] == frame[0])
    ids.erase(ids.begin());
  return ids;
}

}  // namespace atom::server
