// What the verbs of the command line share: their registration, model flags, progress and input.
#pragma once
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/loaded_model.h"

namespace atom::cli {

// Each verb adds its subcommand, with a callback that does the work and may throw Error.
void add_generate(CLI::App& app);
void add_chat(CLI::App& app);
void add_score(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_template(CLI::App& app);
void add_check(CLI::App& app);
void add_inspect(CLI::App& app);
void add_plan(CLI::App& app);
void add_quantize(CLI::App& app);
void add_verify(CLI::App& app);
void add_bench(CLI::App& app);
void add_serve(CLI::App& app);

// --model alone, for verbs that compute nothing.
void add_model_flag(CLI::App* verb, std::string& model);
// --model and everything about how it runs.
void add_model_flags(CLI::App* verb, ModelOptions& options);
// Parts of add_model_flags.
void add_speculation_flag(CLI::App* verb, ModelOptions& options);
CLI::Option* add_quantize_flag(CLI::App* verb, const char* flag, ModelOptions& options);

struct SamplingFlags {
  std::optional<float> temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  std::optional<int32_t> top_k, min_tokens;
  std::optional<uint64_t> seed;
  std::vector<std::string> logit_bias;  // "id=value"
  std::vector<int32_t> stop_ids;
  std::vector<std::string> stop;
  bool ignore_eos = false;

  // These over the checkpoint's own suggestions.
  SamplingParams apply(SamplingParams defaults) const;
};
void add_sampling_flags(CLI::App* verb, SamplingFlags& flags);

// A progress line on stderr: a bar with bytes, rate and time left on a terminal, plain lines elsewhere.
class ProgressLine {
 public:
  ~ProgressLine() { clear(); }
  void operator()(const char* phase, int64_t done, int64_t total);
  void clear();  // removes the bar, before other output

 private:
  std::string phase_;
  int64_t started_us_ = 0, shown_us_ = 0;
  bool visible_ = false;
};

// {"steps", "drafted", "accepted", "accepted_by_position"}; the list ends with the last place that was
// drafted.
Json speculation_json(const SpeculationStats& stats);

// "1,2,3" to ids; throws Error naming the flag.
std::vector<int32_t> parse_ids(const std::string& text, const char* flag);

// Puts the tools of a JSON file into `inputs`, whose messages are there already. Throws Error (invalid) for
// what is no list of tools, and where the template has no use for them.
void add_tools(text::ChatTemplateInputs& inputs, const std::string& file, const TextModel& model);

// As many ids below `vocab`, the same for the same seed.
std::vector<int32_t> random_ids(int64_t tokens, int64_t vocab, uint64_t seed);

// All of standard input, at most 1 GiB.
std::string read_stdin();

// To stdout, flushed; throws Error (failed) where it cannot be written.
void write_out(std::string_view text);
void print_line(std::string_view text);

// A message to stderr; lost where it cannot be written.
void say_text(std::string_view text);
template <class... T>
void say(fmt::format_string<T...> format, T&&... values) {
  say_text(fmt::format(format, std::forward<T>(values)...));
}

// What a number given to a flag must be. None is cut to the range of its type.
CLI::Validator at_least(int64_t least, int64_t most = std::numeric_limits<int64_t>::max());  // whole
CLI::Validator any_seed();
CLI::Validator above_zero();
CLI::Validator not_empty();  // of texts

}  // namespace atom::cli
