#include "text/special_guard.h"

#include <algorithm>
#include <array>

namespace atom::text {
namespace {

constexpr std::array<std::string_view, 6> kReasoningTags = {"<think>",  "</think>",   "[THINK]",
                                                            "[/THINK]", "<thinking>", "</thinking>"};

// Text parts of one message could spell a name together: they become one part.
void join_text_parts(Json& content) {
  if (!content.is_array() || content.size() < 2) return;
  std::string all;
  for (const Json& part : content) {
    if (part.is_string()) {
      all += part.get_ref<const std::string&>();
    } else if (part.is_object() && part.contains("text") && part["text"].is_string()) {
      all += part["text"].get_ref<const std::string&>();
    } else {
      return;
    }
  }
  content = Json::array({{{"type", "text"}, {"text", all}}});
}

}  // namespace

SpecialGuard::SpecialGuard(const Tokenizer& tokenizer) {
  for (const AddedToken& token : tokenizer.added_tokens().tokens()) {
    if (!token.special || token.content.empty()) continue;
    matcher_.add(token.content, static_cast<int>(reasoning_.size()));
    reasoning_.push_back(std::find(kReasoningTags.begin(), kReasoningTags.end(), token.content) !=
                         kReasoningTags.end());
  }
}

bool SpecialGuard::names_special(const Json& value) const {
  size_t begin = 0, end = 0;
  if (value.is_string()) {
    return matcher_.find(value.get_ref<const std::string&>(), 0, begin, end) != TextMatcher::kNone;
  }
  return value.is_structured() &&
         std::any_of(value.begin(), value.end(), [&](const Json& item) { return names_special(item); });
}

std::string SpecialGuard::marked(const std::string& text, const Marks& marks, bool keep_reasoning) const {
  std::string result;
  size_t done = 0, begin = 0, end = 0;
  for (int match; (match = matcher_.find(text, done, begin, end)) != TextMatcher::kNone; done = end) {
    const bool keep = keep_reasoning && reasoning_[static_cast<size_t>(match)];
    result.append(text, done, begin - done);
    if (!keep) result += marks.open;
    result.append(text, begin, end - begin);
    if (!keep) result += marks.close;
  }
  return result.append(text, done);
}

void SpecialGuard::mark(Json& value, const Marks& marks, bool keep_reasoning) const {
  if (value.is_string()) {
    value = marked(value.get_ref<const std::string&>(), marks, keep_reasoning);
  } else if (value.is_structured()) {
    for (Json& item : value) mark(item, marks, keep_reasoning);
  }
}

std::optional<SpecialGuard::Marks> SpecialGuard::mark(ChatTemplateInputs& inputs) const {
  for (Json& message : inputs.messages) join_text_parts(message["content"]);
  const std::array<Json*, 3> parts = {&inputs.messages, &inputs.tools, &inputs.documents};
  if (std::none_of(parts.begin(), parts.end(), [&](const Json* part) { return names_special(*part); }))
    return {};
  std::string all;
  for (const Json* part : parts) all += part->dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string word = "atom-plain";
  while (all.find(word) != std::string::npos) word += "-text";
  // Letters, hyphens and full stops pass through tojson and the like unchanged.
  const Marks marks{word + "-begins.", word + "-ends."};
  for (Json& message : inputs.messages) mark(message, marks, message["role"] == "assistant");
  mark(inputs.tools, marks, false);
  mark(inputs.documents, marks, false);
  return marks;
}

std::vector<TextRange> SpecialGuard::unmark(std::string& text, const Marks& marks) {
  std::vector<TextRange> ranges;
  std::string result;
  std::optional<size_t> opened;
  size_t done = 0, open = text.find(marks.open), close = text.find(marks.close);
  while (open != close) {  // until neither is left
    const size_t next = std::min(open, close);
    result.append(text, done, next - done);
    if (next == open) {
      opened = result.size();
      done = next + marks.open.size();
      open = text.find(marks.open, done);
    } else {
      if (opened && result.size() > *opened) ranges.push_back({*opened, result.size()});
      opened.reset();
      done = next + marks.close.size();
      close = text.find(marks.close, done);
    }
  }
  result.append(text, done);
  text = std::move(result);
  return ranges;
}

}  // namespace atom::text
