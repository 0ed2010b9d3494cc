// atom bench: prefill and decode rates beside the machine's bound, one JSON line each.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "cli/command.h"
#include "engine/device_option.h"
#include "engine/device_plan.h"
#include "runtime/machine_bound.h"

namespace atom::cli {
namespace {

struct Flags {
  ModelOptions model;
  int64_t prompt_tokens = 512;
  int64_t decode_tokens = 64;
  int64_t context = 0;
  std::vector<int32_t> batches = {1};
  int32_t requests = 0;
  int32_t repeat = 3;
  float temperature = 0, top_p = 1;
  int32_t top_k = 0;
};

constexpr int64_t kWarmPrompt = 8, kWarmOutput = 4;  // of the request before the first measurement
constexpr int64_t kMostTokens = 1 << 30;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Timing {
  double first = 0;        // seconds from submission until every sequence has a token
  double rest = 0;         // from then until the sequence that began last has all it was asked for
  int64_t tokens = 0;      // of all sequences in `rest`
  double mean_output = 0;  // output that a sequence has, on average in `rest`
  double host_us = 0;      // that the host did beside waiting in `rest`, per step
};

// Steps in which some sequences decode while prompts of others are computed: so many more tokens they have.
int64_t head_start(int64_t prompt, int32_t batch, int64_t batched_tokens) {
  return batch == 1 ? 0 : prompt * batch / std::max<int64_t>(1, batched_tokens - batch) + batch;
}

Request random_request(int64_t prompt, int64_t output, int64_t vocab, const Flags& f, uint64_t seed,
                       uint64_t number) {
  Request request;
  request.prompt =
      random_ids(prompt, vocab, seed * 1000 + number);  // others in each run: no prefix is reused
  request.max_tokens = output;
  request.sampling.temperature = f.temperature;
  request.sampling.top_p = f.top_p;
  request.sampling.top_k = f.top_k;
  request.sampling.seed = number;
  request.sampling.ignore_eos = true;
  request.reuse_prefix = false;
  return request;
}

// `profiled`: profilers of a GPU shall look at what is timed: prompts without output, or `rest` of others.
Timing time_requests(Engine& engine, int64_t vocab, int64_t prompt, int64_t output, int32_t batch,
                     const Flags& f, int64_t batched_tokens, uint64_t seed, bool profiled) {
  std::vector<int64_t> tokens(static_cast<size_t>(batch));
  std::vector<RequestId> ids;
  int32_t waiting = batch, last_begun = 0;
  int64_t all_started = 0, before = 0, all = 0;
  EngineStats stats;  // when all had started
  if (profiled && output == 1) gpu::begin_profile();
  const int64_t start = now_us();
  for (int32_t b = 0; b < batch; ++b) {
    const int64_t ahead = output > 1 ? head_start(prompt, batch, batched_tokens) : 0;
    const auto take = [&, b](OutputDelta&& delta) {
      if (delta.token_ids.empty()) return;
      all += static_cast<int64_t>(delta.token_ids.size());
      if (std::exchange(tokens[b], tokens[b] + static_cast<int64_t>(delta.token_ids.size())) == 0) {
        last_begun = b;
        --waiting;
      }
    };
    ids.push_back(
        engine.submit(random_request(prompt, output + ahead, vocab, f, seed, static_cast<uint64_t>(b)), take)
            .take());
  }
  // Looked at between steps: a step gives every sequence its tokens one after the other.
  Timing timing;
  bool done = false;
  while (engine.step()) {
    if (waiting > 0 || done) continue;
    const int64_t now = now_us();
    if (all_started == 0) {
      all_started = now;
      before = all;
      stats = engine.stats();
      if (profiled && output > 1) gpu::begin_profile();
    }
    if (tokens[static_cast<size_t>(last_begun)] < output) continue;
    done = true;
    if (profiled) gpu::end_profile();
    const EngineStats after = engine.stats();
    const auto steps =
        static_cast<double>(std::max<int64_t>(1, after.scheduler.steps - stats.scheduler.steps));
    timing = {.first = static_cast<double>(all_started - start) * 1e-6,
              .rest = static_cast<double>(now - all_started) * 1e-6,
              .tokens = all - before,
              .mean_output = static_cast<double>(all + before) / (2.0 * batch),
              .host_us = static_cast<double>(after.host_us - stats.host_us) / steps};
    for (const RequestId id : ids) engine.cancel(id);
  }
  return timing;
}

// The measurements of one loaded model.
class Bench {
 public:
  Bench(const Flags& flags, LoadedModel& model)
      : flags_(flags),
        model_(model),
        engine_(model.engine()),
        vocab_(model.workers().vocab()),
        threads_(flags.model.thread_count()),
        bandwidth_(measure_read_bandwidth(model.device(), threads_) *
                   static_cast<double>(model.workers().devices().size())) {
    time(kWarmPrompt, kWarmOutput, 1, false);  // touches every page once
  }

  void prefill(int32_t batch) {
    std::vector<double> rates;
    for (int32_t i = 0; i < flags_.repeat; ++i) {
      const Timing t = time(flags_.prompt_tokens, 1, batch, on_gpu());
      rates.push_back(static_cast<double>(flags_.prompt_tokens * batch) / t.first);
    }
    print_line(Json{{"phase", "prefill"},
                    {"tokens", flags_.prompt_tokens},
                    {"batch", batch},
                    {"context", 0},
                    {"device", to_string(model_.device())},
                    {"threads", threads_},
                    {"dtype", model_.dtype()},
                    {"tokens_per_second", median(rates)},
                    {"best_tokens_per_second", *std::max_element(rates.begin(), rates.end())}}
                   .dump());
  }

  void decode(int32_t batch) {
    std::vector<double> rates, host_us;
    double mean_output = 0;
    const SpeculationStats before = engine_.stats().speculation;
    for (int32_t i = 0; i < flags_.repeat; ++i) {
      const Timing t = time(std::max<int64_t>(flags_.context, 1), flags_.decode_tokens, batch, on_gpu());
      rates.push_back(static_cast<double>(t.tokens) / t.rest);
      host_us.push_back(t.host_us);
      mean_output = t.mean_output;
    }
    // A step reads every weight it uses once, and each sequence's keys and values; states are also written.
    const std::vector<CacheSpec> specs = model_.workers().cache_specs();
    const int64_t cached =
        cache_bytes(specs, flags_.context + std::llround(mean_output)) + cache_bytes(specs, 0);
    const double bytes = static_cast<double>(model_.workers().weight_bytes_per_step() + cached * batch);
    const double rate = median(rates);
    // With speculation a step gives a sequence more than one token.
    const SpeculationStats speculation = engine_.stats().speculation.since(before);
    const double tokens_per_step = speculation.steps == 0 ? 1
                                                          : 1 + static_cast<double>(speculation.accepted) /
                                                                    static_cast<double>(speculation.steps);
    const double achieved = rate / batch / tokens_per_step * bytes;
    print_line(Json{{"phase", "decode"},
                    {"tokens", flags_.decode_tokens},
                    {"batch", batch},
                    {"context", flags_.context},
                    {"device", to_string(model_.device())},
                    {"threads", threads_},
                    {"dtype", model_.dtype()},
                    {"kv_cache_dtype", dtype_name(model_.cache_dtype())},
                    {"temperature", flags_.temperature},
                    {"tokens_per_second", rate},
                    {"best_tokens_per_second", *std::max_element(rates.begin(), rates.end())},
                    {"bytes_per_step", bytes},
                    {"bandwidth_gbs", bandwidth_ * 1e-9},
                    {"achieved_gbs", achieved * 1e-9},
                    {"fraction", achieved / bandwidth_},
                    {"host_us_per_step", median(host_us)},
                    {"speculation", speculation_json(speculation)}}
                   .dump());
  }

  // Requests that arrive together, from the first to the last token of all.
  void requests() {
    std::vector<double> rates, first_seconds;
    const int64_t output = flags_.decode_tokens;
    for (int32_t i = 0; i < flags_.repeat; ++i) {
      int64_t tokens = 0;
      double first = 0;  // sum of the requests' times to their first tokens
      const int64_t start = now_us();
      for (int32_t r = 0; r < flags_.requests; ++r) {
        const auto take = [&, begun = false](OutputDelta&& delta) mutable {
          tokens += static_cast<int64_t>(delta.token_ids.size());
          if (delta.token_ids.empty() || std::exchange(begun, true)) return;
          first += static_cast<double>(now_us() - start) * 1e-6;
        };
        const auto number = static_cast<uint64_t>(r);
        engine_.submit(random_request(flags_.prompt_tokens, output, vocab_, flags_, seed_, number), take)
            .take();
      }
      ++seed_;
      while (engine_.step()) {
      }
      CHECK(tokens == output * flags_.requests, "{} tokens for {} requests of {}", tokens, flags_.requests,
            output);
      rates.push_back(static_cast<double>(tokens) / (static_cast<double>(now_us() - start) * 1e-6));
      first_seconds.push_back(first / flags_.requests);
    }
    print_line(Json{{"phase", "requests"},
                    {"requests", flags_.requests},
                    {"prompt_tokens", flags_.prompt_tokens},
                    {"output_tokens", output},
                    {"device", to_string(model_.device())},
                    {"threads", threads_},
                    {"dtype", model_.dtype()},
                    {"kv_cache_dtype", dtype_name(model_.cache_dtype())},
                    {"temperature", flags_.temperature},
                    {"output_tokens_per_second", median(rates)},
                    {"best_output_tokens_per_second", *std::max_element(rates.begin(), rates.end())},
                    {"mean_seconds_to_first_token", median(first_seconds)}}
                   .dump());
  }

 private:
  bool on_gpu() const { return model_.device().kind != Device::cpu; }

  Timing time(int64_t prompt, int64_t output, int32_t batch, bool profiled) {
    return time_requests(engine_, vocab_, prompt, output, batch, flags_,
                         model_.cache_plan().limits.max_num_batched_tokens, seed_++, profiled);
  }

  const Flags& flags_;
  LoadedModel& model_;
  Engine& engine_;
  const int64_t vocab_;
  const int threads_;
  const double bandwidth_;
  uint64_t seed_ = 1;
};

void run(Flags f) {
  if (f.requests > 0 && (f.prompt_tokens < 1 || f.decode_tokens < 1)) {
    throw invalid("--requests: requests need --prompt-tokens and --decode-tokens of at least 1");
  }
  if (f.requests == 0 && f.decode_tokens == 1)
    throw invalid("--decode-tokens 1: a rate takes 2 at least; 0 measures none");
  constexpr int64_t kFewestBatchedTokens = 512;  // of the defaults
  const bool requests = f.requests > 0;
  const int32_t most = requests ? f.requests : *std::max_element(f.batches.begin(), f.batches.end());
  const int64_t context = std::max<int64_t>(requests ? f.prompt_tokens : f.context, 1);
  const int64_t batched =
      f.model.max_num_batched_tokens > 0 ? f.model.max_num_batched_tokens : kFewestBatchedTokens;
  const int64_t ahead = requests ? 0 : head_start(context, most, batched);
  const int64_t longest =
      std::max({f.prompt_tokens, context + f.decode_tokens + ahead, kWarmPrompt + kWarmOutput}) + 1;
  if (f.model.max_model_len == 0) f.model.max_model_len = longest;
  if (f.model.max_num_seqs == 0) f.model.max_num_seqs = most;
  ProgressLine progress;
  LoadedModel model(f.model,
                    [&](const char* phase, int64_t done, int64_t total) { progress(phase, done, total); });
  progress.clear();
  Bench bench(f, model);
  if (requests) bench.requests();
  for (const int32_t batch : requests ? std::vector<int32_t>{} : f.batches) {
    if (f.prompt_tokens > 0) bench.prefill(batch);
    if (f.decode_tokens > 1) bench.decode(batch);
  }
  for (const DevicePlan& plan : model.device_plans()) {
    const gpu::DeviceInfo info = gpu::device_info(plan.device);
    print_line(Json{{"phase", "memory"},
                    {"device", to_string(plan.device)},
                    {"planned_bytes", plan.in_use + plan.needed()},
                    {"in_use_bytes", info.total_bytes - info.free_bytes}}
                   .dump());
  }
}

}  // namespace

void add_bench(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("bench", "prefill and decode rates beside the machine's bandwidth");
  add_model_flags(verb, f->model);
  verb->add_option("--prompt-tokens", f->prompt_tokens, "prompt of the prefill measurement; 0: none")
      ->check(at_least(0, kMostTokens));
  verb->add_option("--decode-tokens", f->decode_tokens, "tokens of the decode measurement; 0: none")
      ->check(at_least(0, kMostTokens));
  verb->add_option("--context", f->context, "tokens in the cache before decoding")
      ->check(at_least(0, kMostTokens));
  verb->add_option("--batch", f->batches, "sequences at once; several numbers: one measurement each")
      ->delimiter(',')
      ->check(at_least(1));
  verb->add_option("--requests", f->requests,
                   "instead of all others one measurement of so many requests, each with --prompt-tokens and "
                   "--decode-tokens, that arrive together")
      ->check(at_least(1));
  verb->add_option("--temperature", f->temperature, "of the tokens' choice; 0: the most likely")
      ->check(CLI::Range(0.0, 100.0));
  verb->add_option("--top-p", f->top_p, "probability that the most likely tokens must reach")
      ->check(CLI::Range(1e-6, 1.0));
  verb->add_option("--top-k", f->top_k, "most likely tokens to choose among; 0: all")->check(at_least(0));
  verb->add_option("--repeat", f->repeat, "measurements; the median is reported")->check(at_least(1));
  verb->callback([f] { run(*f); });
}

}  // namespace atom::cli
