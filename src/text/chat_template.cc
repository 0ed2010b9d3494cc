// Parsing and rendering a chat template.
#include "text/chat_template.h"

#include <fmt/format.h>

#include "text/jinja_interpreter.h"
#include "text/jinja_json.h"
#include "text/jinja_parser.h"

namespace atom::text {
namespace {

// Runs `work` and puts the template's name before errors that are not the template's own words.
template <class Work>
auto named_errors(const std::string& name, Work work) {
  try {
    return work();
  } catch (const TemplateError& error) {
    if (error.raised()) throw;
    throw TemplateError(fmt::format("{}: {}", name, error.message()), false);
  }
}

}  // namespace

ChatTemplate::ChatTemplate(std::string source, std::string name) : name_(std::move(name)) {
  program_ = named_errors(name_, [&] { return jinja::parse(source); });
}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

bool ChatTemplate::reads(std::string_view variable) const { return program_->read.contains(variable); }
bool ChatTemplate::has_text(std::string_view text) const { return program_->texts.contains(text); }

std::string ChatTemplate::render(const ChatTemplateInputs& inputs) const { return render(inputs, {}); }

std::string ChatTemplate::render(const ChatTemplateInputs& inputs, const jinja::Limits& limits) const {
  return named_errors(name_, [&] {
    jinja::Runtime runtime(limits, inputs.now);
    jinja::Variables variables;
    const auto add_text = [&](const std::string& name, const std::optional<std::string>& text) {
      if (text) variables.emplace_back(name, jinja::from_json(runtime, Json(*text)));
    };
    variables.emplace_back("messages", jinja::from_json(runtime, inputs.messages));
    variables.emplace_back("tools", jinja::from_json(runtime, inputs.tools));
    variables.emplace_back("documents", jinja::from_json(runtime, inputs.documents));
    variables.emplace_back("add_generation_prompt", jinja::Value::boolean(inputs.add_generation_prompt));
    for (const auto& [token, text] : inputs.special_tokens) add_text(token, text);
    add_text("bos_token", inputs.bos_token);
    add_text("eos_token", inputs.eos_token);
    if (!inputs.kwargs.is_object() && !inputs.kwargs.is_null())
      jinja::fail("the template variables are no object");
    for (const auto& [key, value] : inputs.kwargs.items())
      variables.emplace_back(key, jinja::from_json(runtime, value));
    return jinja::render(*program_, runtime, variables);
  });
}

}  // namespace atom::text
