// Chat templates: the Jinja program of a checkpoint that turns a conversation into the prompt's text,
// rendered as Hugging Face transformers renders it (trim_blocks, lstrip_blocks, break and continue, an
// immutable sandbox).
#pragma once
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "text/jinja_runtime.h"

namespace atom::jinja {
struct Program;
}

namespace atom::text {

// Error (invalid) of a template. raised() tells the template's own refusals, whose message is exactly what
// the template passed to raise_exception, from mistakes in the template or in what it was given.
using TemplateError = jinja::TemplateError;

struct ChatTemplateInputs {
  Json messages = Json::array();
  Json tools;      // null is passed as none
  Json documents;  // likewise
  bool add_generation_prompt = true;
  std::optional<std::string> bos_token, eos_token;                  // absent: undefined in the template
  std::vector<std::pair<std::string, std::string>> special_tokens;  // further ones, such as pad_token
  Json kwargs = Json::object();  // further variables; they win over all of the above
  std::optional<std::tm> now;    // local civil time for strftime_now; absent: the clock
};

class ChatTemplate {
 public:
  // Parses. Throws TemplateError "NAME: line N: ..." for what is no template or uses what is not supported.
  explicit ChatTemplate(std::string source, std::string name = "chat_template");
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // The prompt. Throws TemplateError; needs about 300 KiB of stack; safe from many threads. A template that
  // works too long, recurses too deeply or writes too much is stopped with an error.
  std::string render(const ChatTemplateInputs& inputs) const;
  // The same with a budget of its own.
  std::string render(const ChatTemplateInputs& inputs, const jinja::Limits& limits) const;

  const std::string& name() const { return name_; }
  // True if an expression of the program reads the variable.
  bool reads(std::string_view variable) const;
  // True if an expression of the program has this text as a constant: a role that it compares with.
  bool has_text(std::string_view text) const;

 private:
  std::string name_;
  std::unique_ptr<const jinja::Program> program_;
};

}  // namespace atom::text
