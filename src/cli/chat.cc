// atom chat: a conversation in the terminal.
#include <fmt/core.h>
#include <unistd.h>

#include <csignal>
#include <iostream>

#include "base/clock.h"
#include "base/error.h"
#include "cli/command.h"

namespace atom::cli {
namespace {

struct Flags {
  ModelOptions model;
  SamplingFlags sampling;
  std::string system;
  int64_t max_tokens = 1024;
};

volatile std::sig_atomic_t interrupted = 0;

void run(const Flags& f) {
  ProgressLine progress;
  LoadedModel model(f.model,
                    [&](const char* phase, int64_t done, int64_t total) { progress(phase, done, total); });
  progress.clear();
  const TextModel& text = model.text();
  if (!text.has_chat_template()) {
    throw invalid("{}: has no chat template; use atom generate --prompt", model.files().root.string());
  }
  const bool terminal = ::isatty(STDIN_FILENO) != 0;
  if (terminal) say("Ctrl-C stops an answer, Ctrl-D ends.\n");
  std::signal(SIGINT, [](int) { interrupted = 1; });

  Json messages = Json::array();
  if (!f.system.empty()) messages.push_back({{"role", "system"}, {"content", f.system}});
  auto drop_turn = [&](const std::string& why) {  // and let the user go on
    say("atom: {}\n", why);
    messages.erase(messages.end() - 1);
  };
  for (std::string line;;) {
    if (terminal) say("> ");
    if (!std::getline(std::cin, line)) break;
    if (line.empty()) continue;
    messages.push_back({{"role", "user"}, {"content", line}});

    Request request;
    text::ChatTemplateInputs inputs = text.template_inputs();
    inputs.messages = messages;
    try {
      request.prompt = text.encode_chat(inputs);
    } catch (const Error& e) {
      drop_turn(e.message());
      continue;
    }
    request.sampling = f.sampling.apply(model.default_sampling());
    request.stop = f.sampling.stop;
    request.max_tokens = f.max_tokens;

    std::string answer, error;
    Usage usage;
    int64_t first = 0, last = 0;
    bool cut = false;
    interrupted = 0;
    Result<RequestId> id = model.engine().submit(std::move(request), [&](OutputDelta&& delta) {
      if (!delta.token_ids.empty()) last = now_us();
      if (first == 0) first = last;
      answer += delta.text;
      write_out(delta.text);
      if (delta.finish) usage = delta.usage;
      cut |= delta.finish == FinishReason::length;
      if (delta.finish == FinishReason::failed) error = delta.error;
    });
    if (!id) {
      const bool outgrown = messages.size() > 2;
      drop_turn(id.error().message() +
                (outgrown ? "; start chat again, or with a larger --max-model-len" : ""));
      continue;
    }
    while (model.engine().step()) {
      if (interrupted != 0) model.engine().cancel(id.value());
    }
    print_line("");
    if (!error.empty()) {
      drop_turn(error);
      continue;
    }
    if (cut) say("[cut after {} tokens]\n", usage.output_tokens);
    if (terminal && last > first) {
      say("[{} tokens, {:.1f} tokens/s, {} of {} prompt tokens reused]\n", usage.output_tokens,
          static_cast<double>(usage.output_tokens - 1) / (static_cast<double>(last - first) * 1e-6),
          usage.cached_tokens, usage.prompt_tokens);
    }
    messages.push_back({{"role", "assistant"}, {"content", answer}});
  }
}

}  // namespace

void add_chat(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("chat", "a conversation in the terminal");
  add_model_flags(verb, f->model);
  add_sampling_flags(verb, f->sampling);
  verb->add_option("--system", f->system, "system message");
  verb->add_option("--max-tokens", f->max_tokens, "most tokens of an answer")->check(at_least(1));
  verb->callback([f] {
    if (f->model.max_num_seqs == 0) f->model.max_num_seqs = 1;
    run(*f);
  });
}

}  // namespace atom::cli
