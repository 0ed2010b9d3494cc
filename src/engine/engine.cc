#include "engine/engine.h"

#include <algorithm>
#include <random>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

namespace atom {
namespace {

constexpr int32_t kMaxSamples = 128;

uint64_t random_seed() {
  static thread_local std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

// Samples of one request must differ, and be the same on every run with the same seed.
uint64_t seed_of_sample(uint64_t seed, int32_t index) {
  return index == 0 ? seed : seed ^ (0x9E3779B97F4A7C15ull * static_cast<uint64_t>(index));
}

bool uses_counts(const SamplingParams& p) {
  return p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0;
}

}  // namespace

struct Engine::Sample {
  ActiveRequest* request = nullptr;
  int32_t index = 0;
  SequenceId sequence = 0;
  uint64_t seed = 0;
  TokenCounts counts;
  std::optional<text::Detokenizer> detokenizer;
  std::optional<text::StopStrings> stop_strings;
  std::optional<TokenConstraint> constraint;
  OutputDelta delta;  // collected in the current step
  SpeculationStats speculation;
  DraftPolicy::Record draft_record;
  std::string error;
};

struct Engine::ActiveRequest {
  RequestId id = 0;
  Request request;
  OutputSink sink;
  std::vector<int32_t> stop_ids;  // every id that ends a sample
  std::vector<std::unique_ptr<Sample>> samples;
  int32_t unfinished = 0;
};

Engine::Engine(StepRunner& runner, const text::Tokenizer* tokenizer, EngineOptions options)
    : runner_(runner),
      tokenizer_(tokenizer),
      options_(std::move(options)),
      scheduler_(SchedulerConfig{.groups = options_.cache.groups,
                                 .states = options_.cache.states,
                                 .block_size = options_.cache.limits.block_size,
                                 .max_num_seqs = options_.cache.limits.max_num_seqs,
                                 .max_num_batched_tokens = options_.max_num_batched_tokens,
                                 .max_model_len = options_.cache.limits.max_model_len,
                                 .prefix_caching = options_.prefix_caching,
                                 .cache_salt = options_.cache_salt}),
      draft_policy_(options_.drafts) {}

Engine::~Engine() {
  try {
    for (const Flight& flight : flights_) {
      if (flight.started) runner_.finish();
    }
  } catch (const std::exception& e) {
    log_error("the last steps have failed: {}", e.what());
  }
}

std::optional<Error> Engine::validate(const Request& r) const {
  const int64_t vocab = runner_.vocab();
  for (const int32_t id : r.prompt) {
    if (id < 0 || id >= vocab) return invalid("prompt: token id {} is outside [0, {})", id, vocab);
  }
  if (r.n < 1 || r.n > kMaxSamples) return invalid("n: {} is outside [1, {}]", r.n, kMaxSamples);
  if (r.max_tokens < 0) return invalid("max_tokens: {} is negative", r.max_tokens);
  if (r.prompt_logprobs > 100) return invalid("prompt_logprobs: {} is more than 100", r.prompt_logprobs);
  if (!r.stop.empty() && tokenizer_ == nullptr) {
    return invalid("stop: stop strings need a tokenizer, and this model folder has none");
  }
  if (r.grammar != nullptr && r.grammar->trie().vocab_size() > vocab) {
    return invalid("grammar: its vocabulary has {} tokens, the model's {}", r.grammar->trie().vocab_size(),
                   vocab);
  }
  return atom::validate(r.sampling, vocab);
}

Result<RequestId> Engine::submit(Request request, OutputSink sink) {
  if (const std::optional<Error> error = validate(request)) return *error;
  auto active = std::make_unique<ActiveRequest>();
  active->id = next_id_++;
  active->sink = std::move(sink);
  active->stop_ids = request.sampling.stop_ids;
  if (!request.sampling.ignore_eos) {
    active->stop_ids.insert(active->stop_ids.end(), options_.eos_ids.begin(), options_.eos_ids.end());
  }
  std::string salt = request.cache_salt;
  if (runner_.rope_depends_on_length()) {
    // Keys of the prompt then depend on its length: only equal lengths may share them.
    salt += " length=" + std::to_string(request.prompt.size());
  }
  const uint64_t seed = request.sampling.seed ? *request.sampling.seed : random_seed();
  std::vector<std::unique_ptr<Sample>> samples;
  for (int32_t i = 0; i < request.n; ++i) {
    auto sample = std::make_unique<Sample>();
    sample->request = active.get();
    sample->index = i;
    sample->seed = seed_of_sample(seed, i);
    sample->draft_record = draft_policy_.begin();
    if (uses_counts(request.sampling)) sample->counts.add_prompt(request.prompt);
    if (tokenizer_ != nullptr) sample->detokenizer.emplace(*tokenizer_, /*skip_special_tokens=*/true);
    if (request.grammar != nullptr) sample->constraint.emplace(request.grammar);
    if (!request.stop.empty()) {
      Result<text::StopStrings> stops = text::StopStrings::create(request.stop, request.include_stop);
      if (!stops) return stops.error();
      sample->stop_strings = std::move(stops).value();
    }
    samples.push_back(std::move(sample));
  }
  for (auto& sample : samples) {
    const bool first = sample->index == 0;
    SequenceSpec spec{
        .prompt = request.prompt,
        .max_tokens = request.max_tokens,
        .priority = request.priority,
        .cache_salt = salt,
        .reuse_prefix = request.reuse_prefix,
        .prompt_logits = first && (request.prompt_logprobs >= 0 || request.logits_sink != nullptr),
        .draft_limit = request.max_tokens > 1 ? options_.drafts : 0};
    Result<SequenceId> id = scheduler_.add(std::move(spec));
    if (!id) {  // the samples are alike, so the first is the one refused
      for (const auto& added : active->samples) {
        samples_.erase(added->sequence);
        scheduler_.cancel(added->sequence);
      }
      return id.error();
    }
    sample->sequence = id.value();
    samples_.emplace(sample->sequence, sample.get());
    active->samples.push_back(std::move(sample));
  }
  active->unfinished = request.n;
  active->request = std::move(request);
  const RequestId id = active->id;
  requests_.emplace(id, std::move(active));
  return id;
}

void Engine::cancel(RequestId id) {
  const auto found = requests_.find(id);
  if (found == requests_.end()) return;
  for (const auto& sample : found->second->samples) scheduler_.cancel(sample->sequence);
}

SequenceInput Engine::input_of(const PlannedSequence& planned) {
  Sample& sample = *samples_.at(planned.id);
  const Request& request = sample.request->request;
  const Sequence& sequence = *scheduler_.find(planned.id);
  SequenceInput input;
  input.tokens = sequence.tokens;
  input.prompt_tokens = sequence.prompt_tokens;
  if (sample.index == 0) {
    input.prompt_logprobs = request.prompt_logprobs;
    if (request.logits_sink) input.logits_sink = &request.logits_sink;
  }
  input.sample = {.params = &request.sampling,
                  .counts = uses_counts(request.sampling) ? &sample.counts : nullptr,
                  .stop_ids = sample.request->stop_ids,
                  .seed = sample.seed,
                  .output_index = planned.context + planned.tokens - planned.drafts - sequence.prompt_tokens,
                  .constraint = sample.constraint ? &*sample.constraint : nullptr,
                  .vocab_limit = tokenizer_ == nullptr ? 0 : tokenizer_->vocab_size()};
  return input;
}

// Appends the step's tokens to their sample and to the step's result, up to the one that ends it.
void Engine::take_tokens(const PlannedSequence& planned, Sample& sample, SequenceOutput& output,
                         StepResult& result) {
  const Sequence& sequence = *scheduler_.find(planned.id);
  std::vector<int32_t> ids;
  bool stopped = false;
  for (size_t i = 0; i < output.tokens.size() && !stopped; ++i) {
    ids.push_back(output.tokens[i].id);
    const int64_t output_tokens =
        sequence.total() - sequence.prompt_tokens + static_cast<int64_t>(ids.size());
    switch (take_token(sample, output.tokens[i], output_tokens)) {
      case Taken::goes_on:
        break;
      case Taken::stopped:
        stopped = true;
        break;
      case Taken::failed:
        return result.add_failed(planned.id);
    }
  }
  if (sample.constraint) {
    sample.constraint->keep(ids.size());
    stopped = stopped || sample.constraint->must_end();
  }
  if (planned.drafts > 0) {
    // The last of the verified tokens is a draft only if it ended the list.
    const auto right = std::min<int64_t>(ids.size(), static_cast<int64_t>(output.tokens.size()) - 1);
    sample.speculation.add(planned.drafts, right);
    speculation_.add(planned.drafts, right);
    draft_policy_.verified(sample.draft_record, planned.drafts, right);
  }
  if (stopped) output.drafts.clear();
  result.add(planned.id, ids, stopped, output.drafts);
}

Engine::Taken Engine::take_token(Sample& sample, SampledToken& token, int64_t output_tokens) {
  const ActiveRequest& active = *sample.request;
  if (token.id < 0) {
    sample.error = sample.constraint ? sample.constraint->problem(active.stop_ids) : "";
    if (sample.error.empty()) sample.error = "the logits are not finite";
    return Taken::failed;
  }
  if (uses_counts(active.request.sampling)) sample.counts.add_output(token.id);
  ++output_tokens_;
  sample.delta.token_ids.push_back(token.id);
  if (active.request.sampling.logprobs >= 0) sample.delta.logprobs.push_back(std::move(token.top));

  bool stop = std::find(active.stop_ids.begin(), active.stop_ids.end(), token.id) != active.stop_ids.end();
  if (!stop && sample.detokenizer) {
    Result<std::string> text = sample.detokenizer->feed(token.id);
    if (!text) {
      sample.error = text.error().message();
      return Taken::failed;
    }
    const bool watch = sample.stop_strings && output_tokens >= active.request.sampling.min_tokens;
    sample.delta.text += watch ? sample.stop_strings->feed(text.value()) : text.value();
    stop = watch && sample.stop_strings->stopped();
  }
  return stop ? Taken::stopped : Taken::goes_on;
}

// Chooses how far to draft ahead of the sequences that were sampled. Steps of decodes alone tell what drafts
// cost.
void Engine::plan_drafts(const StepPlan& plan, const StepResult& result, double seconds) {
  const auto sequences = static_cast<int64_t>(plan.sequences.size());
  int64_t verified = 0, proposed = 0;
  bool decodes = true;
  for (const PlannedSequence& planned : plan.sequences) {
    verified += planned.drafts;
    proposed += planned.propose;
    decodes &= planned.sample && planned.tokens == 1 + planned.drafts;
  }
  if (decodes) {
    int64_t tokens = 0;
    for (const SequenceResult& r : result.sequences) tokens += r.tokens;
    draft_policy_.timed(sequences, static_cast<double>(verified + proposed) / 2, tokens, seconds);
  }
  for (const PlannedSequence& planned : plan.sequences) {
    if (!planned.sample) continue;
    DraftPolicy::Record& record = samples_.at(planned.id)->draft_record;
    if (DraftPolicy::given_up(record)) continue;
    scheduler_.limit_drafts(planned.id, draft_policy_.choose(record, sequences));
    if (DraftPolicy::given_up(record)) scheduler_.stop_drafting(planned.id);
  }
}

bool Engine::step() {
  const int64_t began = now_us(), waited = waited_us_;
  if (flights_.empty()) {
    const StepPlan& plan = scheduler_.plan();
    if (plan.empty()) {
      report_finished();
      return false;
    }
    take_off(plan);
  }
  if (flights_.back().started) {
    if (const StepPlan* ahead = scheduler_.plan_ahead()) {
      take_off(*ahead);
      CHECK(flights_.back().started, "step {} was planned ahead and refused", ahead->step);
    }
  }
  land();
  host_us_ += now_us() - began - (waited_us_ - waited);
  return true;
}

std::vector<SequenceInput> Engine::inputs_of(const StepPlan& plan) {
  std::vector<SequenceInput> inputs;
  inputs.reserve(plan.sequences.size());
  for (const PlannedSequence& planned : plan.sequences) inputs.push_back(input_of(planned));
  return inputs;
}

void Engine::take_off(const StepPlan& plan) {
  flights_.push_back({&plan, runner_.start(plan, inputs_of(plan))});
}

// The result of the oldest step in flight. Sequences that have ended since it was planned are passed over.
void Engine::land() {
  const Flight flight = flights_.front();
  flights_.pop_front();
  const StepPlan& plan = *flight.plan;
  const int64_t started = now_us();
  std::vector<SequenceOutput> outputs =
      flight.started ? runner_.finish() : runner_.run(plan, inputs_of(plan));
  waited_us_ += now_us() - started;
  const double seconds = static_cast<double>(now_us() - started) * 1e-6;

  StepResult result;
  result.step = plan.step;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlannedSequence& planned = plan.sequences[i];
    const Sequence* sequence = scheduler_.find(planned.id);
    if (sequence == nullptr || sequence->cancelled) {
      result.add(planned.id, {});
      continue;
    }
    Sample& sample = *samples_.at(planned.id);
    sample.delta.prompt_logprobs = std::move(outputs[i].prompt_logprobs);
    if (planned.sample) {
      take_tokens(planned, sample, outputs[i], result);
    } else {
      result.add(planned.id, {});
    }
  }
  if (step_observer_) step_observer_(plan, result);
  // A step that was started early has no drafts, and how long it took is not known.
  if (options_.adaptive_drafts && !flight.started) plan_drafts(plan, result, seconds);
  scheduler_.commit(result);
  report_finished();
  for (const PlannedSequence& planned : plan.sequences) {
    const auto found = samples_.find(planned.id);
    if (found == samples_.end()) continue;  // finished, and reported with its end
    Sample& sample = *found->second;
    OutputDelta delta = std::exchange(sample.delta, {});
    if (delta.token_ids.empty() && delta.prompt_logprobs.empty()) continue;
    delta.request = sample.request->id;
    delta.index = sample.index;
    sample.request->sink(std::move(delta));
  }
}

void Engine::report_finished() {
  for (FinishedSequence& finished : scheduler_.take_finished()) {
    const auto found = samples_.find(finished.id);
    if (found == samples_.end()) continue;
    Sample& sample = *found->second;
    samples_.erase(found);
    OutputDelta delta = std::move(sample.delta);
    delta.request = sample.request->id;
    delta.index = sample.index;
    if (sample.detokenizer && !(sample.stop_strings && sample.stop_strings->stopped())) {
      const std::string rest = sample.detokenizer->flush();
      if (sample.stop_strings) {
        delta.text += sample.stop_strings->feed(rest);
        if (!sample.stop_strings->stopped()) delta.text += sample.stop_strings->flush();
      } else {
        delta.text += rest;
      }
    }
    delta.finish = finished.reason;
    delta.error = sample.error;
    delta.usage = {.prompt_tokens = finished.prompt_tokens,
                   .cached_tokens = finished.reuse.tokens,
                   .reuse_stop = finished.reuse.stop,
                   .output_tokens = static_cast<int64_t>(finished.output.size()),
                   .speculation = sample.speculation};
    ActiveRequest& active = *sample.request;
    if (sample.speculation.steps > 0) {
      log_info("request {} sample {}: {}", active.id, sample.index, to_string(sample.speculation));
    }
    active.sink(std::move(delta));
    if (--active.unfinished == 0) requests_.erase(active.id);
  }
}

EngineStats Engine::stats() const { return {scheduler_.stats(), output_tokens_, speculation_, host_us_}; }

std::string serve_alone(Engine& engine, Request request, const std::function<void(OutputDelta&)>& take) {
  std::string error;
  engine
      .submit(std::move(request),
              [&](OutputDelta&& delta) {
                if (delta.finish == FinishReason::failed) error = delta.error;
                take(delta);
              })
      .take();
  while (engine.step()) {
  }
  return error;
}

}  // namespace atom
