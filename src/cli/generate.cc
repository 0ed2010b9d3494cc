// atom generate: one completion.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <optional>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "cli/command.h"
#include "text/answer_grammar.h"
#include "text/grammar_cache.h"

namespace atom::cli {
namespace {

constexpr int64_t kMaxGrammarBytes = 1 << 20;

struct Flags {
  ModelOptions model;
  SamplingFlags sampling;
  std::optional<std::string> prompt, token_ids, messages, tools;
  int64_t max_tokens = 256;
  int32_t n = 1;
  std::optional<int32_t> logprobs, prompt_logprobs;
  bool include_stop = false;
  bool no_special_tokens = false;
  std::string output = "text";
  std::optional<std::string> json_schema, regex, grammar;  // what the text must be; two are files
};

// One sample as it comes in.
struct Collected {
  std::string text;
  std::vector<int32_t> ids;
  Json logprobs = Json::array();
  std::string finish_reason;
};

std::vector<int32_t> prompt_ids(const Flags& f, const TextModel& text) {
  if (f.token_ids) return parse_ids(*f.token_ids, "--token-ids");
  if (f.prompt) return text.tokenizer().encode(*f.prompt, {.add_special_tokens = !f.no_special_tokens});
  text::ChatTemplateInputs inputs = text.template_inputs();
  inputs.messages = read_json_file(*f.messages);
  if (f.tools) add_tools(inputs, *f.tools, text);
  return text.encode_chat(inputs);
}

// Null if the text may be anything.
std::shared_ptr<text::GrammarMasks> grammar_of(const Flags& f, const TextModel& text) {
  if (!f.json_schema && !f.regex && !f.grammar) return nullptr;
  text::ContentForm form;
  if (f.json_schema) {
    form = {text::ContentForm::Kind::json_schema, read_json_file(*f.json_schema), {}};
  } else if (f.regex) {
    form = {text::ContentForm::Kind::regex, {}, *f.regex};
  } else {
    form = {text::ContentForm::Kind::ebnf, {}, read_file(*f.grammar, kMaxGrammarBytes)};
  }
  text::GrammarCache cache(text.tokenizer(), {});
  return cache.get("", [&] { return text::content_grammar(form); }).take();
}

Json logprob_json(const std::vector<TokenLogprob>& entries, const TextModel& text) {
  Json list = Json::array();
  for (const TokenLogprob& e : entries) {
    Json item = {{"id", e.id}, {"logprob", e.logprob}};
    if (text.has_tokenizer()) {
      const std::string token(text.tokenizer().id_to_token(e.id));
      item["token"] = token;
    }
    list.push_back(std::move(item));
  }
  return Json{{"id", entries.front().id},
              {"logprob", entries.front().logprob},
              {"top", Json(list.begin() + 1, list.end())}};
}

void run(const Flags& f) {
  if (f.output != "text" && f.output != "json") throw invalid("--output {}: use text or json", f.output);
  if (int(f.prompt.has_value()) + int(f.token_ids.has_value()) + int(f.messages.has_value()) != 1) {
    throw invalid("generate: give one of --prompt, --token-ids and --messages");
  }
  if (int(f.json_schema.has_value()) + int(f.regex.has_value()) + int(f.grammar.has_value()) > 1) {
    throw invalid("generate: give one of --json-schema, --regex and --grammar");
  }
  if (f.tools && !f.messages) throw invalid("--tools: goes with --messages");
  if (f.no_special_tokens && !f.prompt) throw invalid("--no-special-tokens: goes with --prompt");
  if ((f.logprobs || f.prompt_logprobs) && f.output != "json")
    throw invalid("--logprobs, --prompt-logprobs: go with --output json");
  const int64_t started = now_us();
  ProgressLine progress;
  LoadedModel model(f.model,
                    [&](const char* phase, int64_t done, int64_t total) { progress(phase, done, total); });
  progress.clear();
  const int64_t loaded = now_us();

  Request request;
  request.prompt = prompt_ids(f, model.text());
  request.sampling = f.sampling.apply(model.default_sampling());
  request.max_tokens = f.max_tokens;
  request.n = f.n;
  request.stop = f.sampling.stop;
  request.include_stop = f.include_stop;
  if (f.logprobs) request.sampling.logprobs = *f.logprobs;
  if (f.prompt_logprobs) request.prompt_logprobs = *f.prompt_logprobs;
  request.grammar = grammar_of(f, model.text());
  const bool json = f.output == "json";
  const bool stream = !json && f.n == 1;

  std::vector<Collected> samples(static_cast<size_t>(std::max(f.n, 1)));
  Json prompt_logprobs = Json::array();
  Usage usage;
  int64_t output_tokens = 0;
  SpeculationStats speculation;
  int64_t first_token = 0, last_token = 0;
  const int64_t submitted = now_us();
  const std::string error = serve_alone(model.engine(), std::move(request), [&](OutputDelta& delta) {
    Collected& sample = samples[delta.index];
    if (!delta.token_ids.empty()) last_token = now_us();
    if (first_token == 0) first_token = last_token;
    sample.text += delta.text;
    sample.ids.insert(sample.ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    for (const auto& entries : delta.logprobs) sample.logprobs.push_back(logprob_json(entries, model.text()));
    for (const auto& entries : delta.prompt_logprobs)
      prompt_logprobs.push_back(logprob_json(entries, model.text()));
    if (stream) write_out(delta.text);
    if (!delta.finish) return;
    sample.finish_reason = to_string(*delta.finish);
    usage = delta.usage;
    speculation.add(delta.usage.speculation);
    output_tokens += delta.usage.output_tokens;
  });
  const int64_t done = now_us();
  if (!error.empty()) throw failed("generation failed: {}", error);

  const double decode_seconds = static_cast<double>(last_token - first_token) * 1e-6;
  const double decode_rate =
      decode_seconds > 0 ? static_cast<double>(output_tokens - f.n) / decode_seconds : 0;
  if (!json) {
    if (!stream) {
      for (const Collected& sample : samples) print_line(sample.text);
    } else {
      print_line(model.text().has_tokenizer() ? "" : fmt::format("{}", fmt::join(samples.front().ids, ",")));
    }
    say("{} prompt tokens, {} output tokens", usage.prompt_tokens, output_tokens);
    if (first_token > 0)
      say(", first token after {:.3f} s, then {:.1f} tokens/s",
          static_cast<double>(first_token - submitted) * 1e-6, decode_rate);
    say("\n");
    if (speculation.drafted > 0) say("{}\n", to_string(speculation));
    return;
  }
  auto sample_json = [&](const Collected& sample) {
    Json entry = {{"text", sample.text}, {"token_ids", sample.ids}, {"finish_reason", sample.finish_reason}};
    if (!sample.logprobs.empty()) entry["logprobs"] = sample.logprobs;
    return entry;
  };
  Json result = sample_json(samples.front());
  if (f.n > 1) {
    result["choices"] = Json::array();
    for (const Collected& sample : samples) result["choices"].push_back(sample_json(sample));
  }
  if (!prompt_logprobs.empty()) result["prompt_logprobs"] = prompt_logprobs;
  result["usage"] = {{"prompt_tokens", usage.prompt_tokens},
                     {"output_tokens", output_tokens},
                     {"cached_tokens", usage.cached_tokens},
                     {"reuse_stopped", to_string(usage.reuse_stop)}};
  result["timing"] = {
      {"load_s", static_cast<double>(loaded - started) * 1e-6},
      {"first_token_s", first_token == 0 ? 0.0 : static_cast<double>(first_token - submitted) * 1e-6},
      {"total_s", static_cast<double>(done - submitted) * 1e-6},
      {"decode_tokens_per_s", decode_rate}};
  result["speculation"] = speculation_json(speculation);
  print_line(result.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

void add_generate(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("generate", "one completion of a prompt");
  add_model_flags(verb, f->model);
  add_sampling_flags(verb, f->sampling);
  verb->add_option("--prompt", f->prompt, "text to continue");
  verb->add_option("--token-ids", f->token_ids, "ids to continue, comma separated; needs no tokenizer");
  verb->add_option("--messages", f->messages, "JSON file with a conversation");
  verb->add_option("--tools", f->tools, "JSON file with tools, for the chat template");
  verb->add_option("--max-tokens", f->max_tokens, "most output tokens")->check(at_least(0));
  verb->add_option("--n", f->n, "samples of the prompt");
  verb->add_option("--logprobs", f->logprobs, "log-probabilities of the chosen token and this many best")
      ->check(CLI::Range(0, 100));
  verb->add_option("--prompt-logprobs", f->prompt_logprobs,
                   "log-probabilities of the prompt and this many best")
      ->check(CLI::Range(0, 100));
  verb->add_flag("--include-stop", f->include_stop, "keep the stop text in the output");
  verb->add_flag("--no-special-tokens", f->no_special_tokens, "put no BOS or the like around --prompt");
  verb->add_option("--json-schema", f->json_schema, "JSON file with a schema that the text conforms to");
  verb->add_option("--regex", f->regex, "regular expression that the whole text matches");
  verb->add_option("--grammar", f->grammar, "file with a grammar (GBNF) that the text is of");
  verb->add_option("--output", f->output, "text or json");
  verb->callback([f] {
    // One request runs at a time, so the cache need not hold more sequences than its samples.
    if (f->model.max_num_seqs == 0) f->model.max_num_seqs = std::max(1, f->n);
    run(*f);
  });
}

}  // namespace atom::cli
