// Reasoning between tags.
#include "text/think_parser.h"

#include <utility>

namespace atom::text {
namespace {

using Seen = TextFeed::Seen;

std::unique_ptr<CallParser> make_calls(ResponseFormat format, const ResponseParserOptions& options,
                                       EventSink& sink) {
  if (!options.parse_tools || options.tools.empty()) return make_plain_text(sink);
  switch (format) {
    case ResponseFormat::hermes:
    case ResponseFormat::llama3_json:
    case ResponseFormat::mistral:
    case ResponseFormat::mistral_args:
      return make_envelope_calls(format, sink);
    case ResponseFormat::deepseek_v3:
    case ResponseFormat::deepseek_v31:
    case ResponseFormat::kimi_k2:
      return make_header_calls(format, sink);
    case ResponseFormat::qwen3_coder:
    case ResponseFormat::deepseek_v32:
    case ResponseFormat::glm45:
      return make_markup_calls(format, options.tools, sink);
    default:
      return make_plain_text(sink);
  }
}

size_t leading_newlines(std::string_view text) {
  const size_t end = text.find_first_not_of('\n');
  return end == std::string_view::npos ? text.size() : end;
}

}  // namespace

ThinkParser::ThinkParser(ThinkTags tags, ResponseFormat format, const ResponseParserOptions& options)
    : tags_(std::move(tags)), calls_(make_calls(format, options, sink_)) {
  ends_.push_back(tags_.close);
  ends_.insert(ends_.end(), tags_.also_ends.begin(), tags_.also_ends.end());
  state_ = tags_.open.empty() ? State::rest : options.starts_in_reasoning ? State::opened : State::start;
}

std::vector<ResponseEvent> ThinkParser::push(std::string_view text) {
  feed_.append(text);
  while (step()) {
  }
  return sink_.take();
}

std::vector<ResponseEvent> ThinkParser::finish() {
  feed_.close();
  while (step()) {
  }
  calls_->finish();
  return sink_.take();
}

bool ThinkParser::go(State next) {
  state_ = next;
  return true;
}

bool ThinkParser::step() {
  switch (state_) {
    case State::start: {
      held_ += feed_.take(feed_.space());
      const Seen seen = feed_.see(tags_.open);
      if (seen == Seen::maybe) return false;
      if (seen == Seen::yes) {
        held_.clear();
        return go(State::opened);  // which consumes the tag
      }
      calls_->push(std::exchange(held_, {}));
      return go(State::rest);
    }
    case State::opened: {  // some models repeat the tag that the prompt has opened
      feed_.consume(leading_newlines(feed_.rest()));
      const Seen seen = feed_.see(tags_.open);
      if (seen == Seen::maybe) return false;
      if (seen == Seen::yes) feed_.consume(tags_.open.size());
      return go(State::begun);
    }
    case State::begun:
      feed_.consume(leading_newlines(feed_.rest()));
      return feed_.empty() ? false : go(State::reasoning);
    case State::reasoning: {
      const TextFeed::Found found = feed_.find(ends_);
      const std::string_view text = feed_.take(found.begin);
      const size_t solid = text.find_last_not_of('\n') + 1;  // 0 if there are newlines only
      if (solid > 0) {
        sink_.reasoning(std::exchange(held_, {}));
        sink_.reasoning(text.substr(0, solid));
      }
      held_ += text.substr(solid);
      if (found.index < 0) {
        if (feed_.closed()) sink_.reasoning(std::exchange(held_, {}));
        return false;
      }
      held_.clear();
      if (found.index == 0) feed_.consume(tags_.close.size());
      return go(State::closed);
    }
    case State::closed:
      feed_.consume(leading_newlines(feed_.rest()));
      return feed_.empty() ? false : go(State::rest);
    default:
      if (feed_.empty()) return false;
      calls_->push(feed_.take(feed_.rest().size()));
      return true;
  }
}

}  // namespace atom::text
