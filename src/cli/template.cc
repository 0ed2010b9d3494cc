// atom template: the rendered prompt of a conversation.
#include <cstdio>
#include <ctime>

#include "base/error.h"
#include "cli/command.h"

namespace atom::cli {
namespace {

struct Flags {
  std::string model, messages;
  std::optional<std::string> tools, now;
  std::vector<std::string> variables;
  bool no_generation_prompt = false;
};

// "2026-03-07T09:05:03" as civil time.
std::tm parse_time(const std::string& value) {
  std::tm time{};
  for (const char* format : {"%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d"}) {
    time = {};
    const char* end = ::strptime(value.c_str(), format, &time);
    if (end != nullptr && *end == '\0') {
      time.tm_isdst = -1;
      return time;
    }
  }
  throw invalid("--now {}: write ISO 8601, such as 2026-03-07T09:05:03", value);
}

void run(const Flags& f) {
  const TextModel model(open_model_files(locate_model(f.model)));
  text::ChatTemplateInputs inputs = model.template_inputs();
  for (const std::string& variable : f.variables) {
    const size_t eq = variable.find('=');
    if (eq == std::string::npos || eq == 0) throw invalid("--set {}: write NAME=JSON", variable);
    const std::string name = variable.substr(0, eq);
    if (!model.chat_template().reads(name))
      throw invalid("--set {}: the chat template does not read it", name);
    inputs.kwargs[name] = parse_json(variable.substr(eq + 1), "--set " + name);
  }
  inputs.messages = read_json_file(f.messages);
  inputs.add_generation_prompt = !f.no_generation_prompt;
  if (f.tools) add_tools(inputs, *f.tools, model);
  if (f.now) inputs.now = parse_time(*f.now);
  write_out(model.render_text(std::move(inputs)));
}

}  // namespace

void add_template(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  CLI::App* verb =
      app.add_subcommand("template", "the prompt that the chat template makes of a conversation");
  add_model_flag(verb, f->model);
  verb->add_option("--messages", f->messages, "JSON file with the conversation")->required();
  verb->add_option("--tools", f->tools, "JSON file with tools");
  verb->add_option("--set", f->variables, "NAME=JSON, a template variable (may be repeated)");
  verb->add_flag("--no-generation-prompt", f->no_generation_prompt, "do not open the assistant's turn");
  verb->add_option("--now", f->now, "the time the template sees, ISO 8601; default: the clock");
  verb->callback([f] { run(*f); });
}

}  // namespace atom::cli
