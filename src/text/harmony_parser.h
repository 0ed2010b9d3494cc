// gpt-oss: an answer is a sequence of messages with channels and recipients.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "text/event_sink.h"
#include "text/json_scanner.h"
#include "text/text_feed.h"

namespace atom::text {

// The text begins in the header of the first message, as the prompt ends with <|start|>assistant. The
// analysis channel is reasoning, a message to a function a call, all else content; messages of one kind that
// follow each other are separated by a newline. What has no header, or a broken one, is content.
class HarmonyParser : public ResponseParser {
 public:
  explicit HarmonyParser(const ResponseParserOptions& options);

  std::vector<ResponseEvent> push(std::string_view text) override;
  std::vector<ResponseEvent> finish() override;

 private:
  enum class State : uint8_t { first_header, header, body, call, arguments, behind_arguments, between };
  enum class Kind : uint8_t { reasoning, content };

  bool step();
  bool go(State next);
  bool read_first_header();
  bool read_header();
  bool begin_message();
  bool begin_body(Kind kind, std::string_view opening = {});
  bool read_body();
  bool read_call();
  bool read_arguments();
  bool read_between();
  void emit(std::string_view text);
  void spill_header();

  const bool calls_allowed_;
  EventSink sink_;
  TextFeed feed_;
  ArgumentStream arguments_;
  State state_ = State::first_header;
  Kind kind_ = Kind::content;
  bool separate_ = false;  // a newline is due before the body's text
  bool has_reasoning_ = false, has_content_ = false;
  std::string header_, name_, space_;
};

}  // namespace atom::text
