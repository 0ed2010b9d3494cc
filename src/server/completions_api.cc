#include "server/completions_api.h"

#include <fmt/format.h>

#include "server/chat_task.h"
#include "server/constrained_output.h"
#include "server/generate_fields.h"
#include "server/openai_form.h"

namespace atom::server {
namespace {

constexpr size_t kMaxPrompts = 256;
constexpr int64_t kDefaultTokens = 16;  // OpenAI's

struct Prompt {
  std::string text;  // as given, or decoded: for echo
  std::vector<int32_t> ids;
  std::vector<std::vector<TokenLogprob>> logprobs;  // of tokens 1, 2, ..., once they are known
};

Prompt prompt_of(const Json& value, const ServedModel& model, const std::string& path, bool needs_text) {
  Prompt prompt;
  if (value.is_string()) {
    prompt.text = value.get<std::string>();
    prompt.ids = model.encode_text(prompt.text);
  } else if (value.is_array()) {
    for (size_t i = 0; i < value.size(); ++i) {
      prompt.ids.push_back(read_token_id(value[i], model, fmt::format("{}[{}]", path, i)));
    }
    if (needs_text) {
      Result<std::string> text = model.tokenizer().decode(prompt.ids, false);
      if (!text) throw from_error(text.error());
      prompt.text = std::move(text).value();
    }
  } else {
    throw bad_field(path, "must be a string, a list of token ids, or a list of either");
  }
  if (prompt.ids.empty()) throw bad_field(path, "is empty, and this model puts no token before a text");
  return prompt;
}

std::vector<Prompt> read_prompts(Fields& fields, const ServedModel& model, bool needs_text) {
  const Json* value = fields.find("prompt");
  if (value == nullptr) throw ApiError(400, "missing_field", "prompt: is required", "prompt");
  const bool list = value->is_array() && !value->empty() && !value->front().is_number();
  if (!list) return {prompt_of(*value, model, "prompt", needs_text)};
  if (value->size() > kMaxPrompts) {
    throw bad_field("prompt", "has {} prompts; at most {} are taken", value->size(), kMaxPrompts);
  }
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < value->size(); ++i) {
    prompts.push_back(prompt_of((*value)[i], model, fmt::format("prompt[{}]", i), needs_text));
  }
  return prompts;
}

struct Options {
  StreamFields stream;
  bool echo = false;
  std::optional<int32_t> logprobs;
  int32_t n = 1;
  SamplingParams sampling;
};

class CompletionsWriter : public AnswerWriter {
 public:
  CompletionsWriter(const ServedModel& model, std::vector<Prompt> prompts, Options options)
      : model_(model), prompts_(std::move(prompts)), options_(std::move(options)) {
    choices_.resize(prompts_.size() * static_cast<size_t>(options_.n));
    held_.resize(prompts_.size());
  }

  bool streams() const override { return options_.stream.stream; }
  void begin(std::string&) override {}

  void take(size_t prompt, OutputDelta&& delta, std::string& out) override {
    // The prompt's own log-probabilities come in chunks with the first sample; the others may be ahead.
    for (auto& entries : delta.prompt_logprobs) prompts_[prompt].logprobs.push_back(std::move(entries));
    held_[prompt].push_back(std::move(delta));
    const bool echoes_logprobs = options_.echo && options_.logprobs;
    if (echoes_logprobs && prompts_[prompt].logprobs.size() + 1 < prompts_[prompt].ids.size()) return;
    for (const OutputDelta& held : std::exchange(held_[prompt], {})) add(prompt, held, out);
  }

  void end(std::string& out) override {
    if (options_.stream.stream) {
      if (options_.stream.include_usage) {
        Json chunk = base();
        chunk["choices"] = Json::array();
        chunk["usage"] = usage_.json();
        append_event(out, chunk);
      }
      out += "data: [DONE]\n\n";
      return;
    }
    Json answer = base();
    for (size_t i = 0; i < choices_.size(); ++i) answer["choices"].push_back(choice_json(i));
    answer["usage"] = usage_.json();
    out += dump(answer);
  }

  std::string error(const ApiError& error, bool begun) override {
    return error_answer(error.openai_body(), begun);
  }

 private:
  struct Choice {
    std::string text;  // not sent yet
    Json logprobs = {{"tokens", Json::array()},
                     {"token_logprobs", Json::array()},
                     {"top_logprobs", Json::array()},
                     {"text_offset", Json::array()}};
    std::string finish_reason;
    int64_t offset = 0;  // characters of the tokens so far
    bool echoed = false;
  };

  void add(size_t prompt, const OutputDelta& delta, std::string& out) {
    const size_t index = prompt * static_cast<size_t>(options_.n) + static_cast<size_t>(delta.index);
    Choice& choice = choices_[index];
    if (options_.echo && !choice.echoed) {
      choice.echoed = true;
      choice.text = prompts_[prompt].text;
      if (options_.logprobs) echo_logprobs(choice, prompts_[prompt]);
    }
    choice.text += delta.text;
    for (const auto& entries : delta.logprobs) {
      if (!ends_text(model_, options_.sampling, entries.front().id)) add_logprob(choice, entries);
    }
    if (delta.finish) {
      choice.finish_reason = to_string(*delta.finish);
      usage_.add(delta.usage, delta.index == 0);
    }
    if (options_.stream.stream &&
        (delta.finish || !choice.text.empty() || !choice.logprobs["tokens"].empty())) {
      send(out, index);
    }
  }

  void add_token(Choice& choice, int32_t id) const {
    choice.logprobs["tokens"].push_back(token_text(model_, id));
    choice.logprobs["text_offset"].push_back(choice.offset);
    // A character whose bytes are several tokens' counts at the first of them.
    if (!model_.text->has_tokenizer()) return;
    for (const char byte : model_.text->tokenizer().token_bytes(id))
      choice.offset += (static_cast<uint8_t>(byte) & 0xC0) != 0x80;
  }
  void add_logprob(Choice& choice, const std::vector<TokenLogprob>& entries) const {
    add_token(choice, entries.front().id);
    choice.logprobs["token_logprobs"].push_back(finite_logprob(entries.front().logprob));
    Json top = Json::object();
    for (size_t i = 1; i < entries.size(); ++i) {
      top[token_text(model_, entries[i].id)] = finite_logprob(entries[i].logprob);
    }
    choice.logprobs["top_logprobs"].push_back(std::move(top));
  }
  // The first token of a prompt has no probability.
  void echo_logprobs(Choice& choice, const Prompt& prompt) const {
    add_token(choice, prompt.ids.front());
    choice.logprobs["token_logprobs"].push_back(nullptr);
    choice.logprobs["top_logprobs"].push_back(nullptr);
    for (const auto& entries : prompt.logprobs) add_logprob(choice, entries);
  }

  Json base() const {
    return {{"id", id_},
            {"object", "text_completion"},
            {"created", created_},
            {"model", model_.name()},
            {"choices", Json::array()}};
  }
  Json choice_json(size_t index) const {
    const Choice& choice = choices_[index];
    return {{"index", index},
            {"text", choice.text},
            {"logprobs", options_.logprobs ? choice.logprobs : Json(nullptr)},
            {"finish_reason", choice.finish_reason.empty() ? Json(nullptr) : Json(choice.finish_reason)}};
  }
  void send(std::string& out, size_t index) {
    Json chunk = base();
    chunk["choices"].push_back(choice_json(index));
    if (options_.stream.include_usage) chunk["usage"] = nullptr;
    append_event(out, chunk);
    Choice& choice = choices_[index];
    choice.text.clear();
    for (Json& list : choice.logprobs) list = Json::array();
  }

  const ServedModel& model_;
  std::vector<Prompt> prompts_;
  std::vector<std::vector<OutputDelta>> held_;  // of each prompt, until its log-probabilities are known
  const Options options_;
  const std::string id_ = make_id("cmpl-");
  const int64_t created_ = unix_seconds();
  std::vector<Choice> choices_;
  UsageSum usage_;
};

}  // namespace

int32_t read_token_id(const Json& value, const ServedModel& model, const std::string& path) {
  if (!value.is_number_integer() || value < 0 || value >= model.vocab) {
    std::string shown = dump(value);
    if (shown.size() > 40) shown = "the value";
    throw bad_field(path, "{} is not a token id in [0, {})", shown, model.vocab);
  }
  return value.get<int32_t>();
}

GenerationPlan plan_completions(const Json& body, const ServedModel& model) {
  Fields fields(body);
  model.check_name(fields.required_text("model"));
  Request request;
  read_sampling(fields, model, request);
  Options options;
  options.stream = read_stream_fields(fields);
  options.echo = fields.boolean("echo").value_or(false);
  options.n = request.n;
  if (const auto k = fields.integer("logprobs", 0, 5)) {
    options.logprobs = static_cast<int32_t>(*k);
    request.sampling.logprobs = *options.logprobs;
    if (options.echo) request.prompt_logprobs = *options.logprobs;
  }
  if (const auto best_of = fields.integer("best_of", 1, kMaxSamples); best_of && *best_of != request.n) {
    throw bad_field("best_of", "{} differs from n = {}; choosing among more samples is not supported",
                    *best_of, request.n);
  }
  const int64_t max_tokens = fields.integer("max_tokens", 0, INT64_MAX).value_or(kDefaultTokens);
  if (max_tokens == 0 && !options.echo) throw bad_field("max_tokens", "0 goes with echo: true");
  const int64_t deadline_us = read_deadline(fields);
  const std::vector<Prompt> prompts = read_prompts(fields, model, options.echo);
  if (static_cast<int64_t>(prompts.size()) * request.n > static_cast<int64_t>(kMaxPrompts)) {
    throw bad_field("n", "{} prompts times n = {} are more than {} choices", prompts.size(), request.n,
                    kMaxPrompts);
  }
  request.grammar = constrain_text(read_content(fields), model);
  fields.only("suffix", nullptr, "is not supported");
  read_harmless(fields);
  fields.done();
  options.sampling = request.sampling;

  GenerationPlan plan;
  plan.deadline_us = deadline_us;
  for (const Prompt& prompt : prompts) {
    Request one = request;
    one.max_tokens = clamp_tokens(max_tokens, static_cast<int64_t>(prompt.ids.size()), model);
    one.prompt = prompt.ids;
    plan.requests.push_back(std::move(one));
  }
  plan.writer = std::make_unique<CompletionsWriter>(model, prompts, std::move(options));
  return plan;
}

}  // namespace atom::server
