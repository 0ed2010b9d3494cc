#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>

#include "base/clock.h"

namespace atom::server {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;

const Histogram::BucketBoundaries kSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                              0.5,   1,      2.5,   5,    10,    30,   60,  120};

// Brings a counter up to a sum that the engine keeps.
void advance(Counter& counter, int64_t sum) {
  counter.Increment(std::max(0.0, static_cast<double>(sum) - counter.Value()));
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

}  // namespace

struct Metrics::State {
  prometheus::Registry registry;

  template <class T = Gauge>
  T& gauge(const char* name, const char* help) {
    return BuildGauge().Name(name).Help(help).Register(registry).Add({});
  }
  Counter& counter(const char* name, const char* help) {
    return BuildCounter().Name(name).Help(help).Register(registry).Add({});
  }
  Histogram& histogram(const char* name, const char* help) {
    return BuildHistogram().Name(name).Help(help).Register(registry).Add({}, kSeconds);
  }

  Family<Counter>& answers =
      BuildCounter().Name("atom_http_requests_total").Help("HTTP requests answered").Register(registry);
  Family<Histogram>& answer_seconds = BuildHistogram()
                                          .Name("atom_http_request_seconds")
                                          .Help("From a request's headers to the end of its answer")
                                          .Register(registry);
  Histogram& ttft = histogram("atom_time_to_first_token_seconds", "From submission to the first token");
  Histogram& inter_token = histogram("atom_inter_token_seconds", "Between tokens of one sample");
  Family<Counter>& ended =
      BuildCounter().Name("atom_samples_total").Help("Samples that ended, by reason").Register(registry);
  Counter& prompt_tokens = counter("atom_prompt_tokens_total", "Prompt tokens of ended samples");
  Counter& cached_tokens =
      counter("atom_prompt_tokens_cached_total", "Of these, reused from the prefix cache");
  Counter& output_tokens = counter("atom_output_tokens_total", "Tokens generated");
  Family<Counter>& reuse_stops = BuildCounter()
                                     .Name("atom_prefix_reuse_stops_total")
                                     .Help("Why the prompt's next block was not reused")
                                     .Register(registry);
  Counter& watchdog = counter("atom_watchdog_ended_total", "Requests ended because the engine hung");

  Gauge& ready = gauge("atom_ready", "1 once the model answers");
  Gauge& running = gauge("atom_sequences_running", "Sequences that are computed");
  Gauge& waiting = gauge("atom_sequences_waiting", "Sequences that wait for room");
  Gauge& requests = gauge("atom_requests_in_engine", "Requests that the engine has");
  Gauge& in_flight = gauge("atom_requests_in_flight", "Generations that are being answered");
  Gauge& connections = gauge("atom_connections", "Open connections");
  Counter& steps = counter("atom_engine_steps_total", "Steps computed");
  Counter& preemptions =
      counter("atom_preemptions_total", "Sequences that lost their blocks and were computed again");
  Counter& verifications =
      counter("atom_speculation_steps_total", "Times that drafts of a sample were verified");
  Family<Counter>& drafted = BuildCounter()
                                 .Name("atom_speculation_drafted_tokens_total")
                                 .Help("Drafts verified, by their place behind the last token")
                                 .Register(registry);
  Family<Counter>& accepted = BuildCounter()
                                  .Name("atom_speculation_accepted_tokens_total")
                                  .Help("Of these, those that were right")
                                  .Register(registry);
  Family<Gauge>& blocks =
      BuildGauge().Name("atom_cache_blocks").Help("Cache blocks by group and state").Register(registry);
  Gauge& weight_bytes = gauge("atom_weight_bytes", "Bytes of weights");
  Gauge& cache_bytes = gauge("atom_cache_bytes", "Bytes of keys, values and states");
  Gauge& step_bytes = gauge("atom_weight_bytes_per_step", "Bytes of weights that a step of one token reads");
  Gauge& bandwidth =
      gauge("atom_memory_bytes_per_second", "What the machine can read, measured; 0: not measured");
  Gauge& bound_fraction =
      gauge("atom_bound_fraction",
            "Weight bytes read per second since the last scrape, over what the machine can read");

  Gauge& resident_bytes = gauge("process_resident_memory_bytes", "Resident memory of the process");

  std::mutex mutex;  // of what follows and of writing the gauges
  int64_t last_scrape_us = now_us();
  int64_t last_steps = 0;
};

Metrics::Metrics() : state_(std::make_unique<State>()) {}
Metrics::~Metrics() = default;

void Metrics::answered(const std::string& route, int status, double seconds) {
  state_->answers.Add({{"route", route}, {"status", std::to_string(status)}}).Increment();
  state_->answer_seconds.Add({{"route", route}}, kSeconds).Observe(seconds);
}

void Metrics::first_token(double seconds) { state_->ttft.Observe(seconds); }
void Metrics::next_tokens(double seconds, int64_t tokens) {
  for (int64_t i = 0; i < tokens; ++i) state_->inter_token.Observe(seconds / static_cast<double>(tokens));
}

void Metrics::finished(FinishReason reason, const Usage& usage) {
  state_->ended.Add({{"reason", std::string(to_string(reason))}}).Increment();
  state_->prompt_tokens.Increment(static_cast<double>(usage.prompt_tokens));
  state_->cached_tokens.Increment(static_cast<double>(usage.cached_tokens));
  state_->output_tokens.Increment(static_cast<double>(usage.output_tokens));
  state_->reuse_stops.Add({{"reason", std::string(to_string(usage.reuse_stop))}}).Increment();
}

void Metrics::watchdog_ended(int64_t requests) { state_->watchdog.Increment(static_cast<double>(requests)); }

std::string Metrics::text(const Now& now) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  const auto set = [](Gauge& gauge, int64_t value) { gauge.Set(static_cast<double>(value)); };
  const SchedulerStats& scheduler = now.stats.scheduler;
  set(s.ready, now.ready);
  set(s.running, scheduler.running);
  set(s.waiting, scheduler.waiting);
  set(s.requests, now.beat.requests);
  set(s.in_flight, now.in_flight);
  set(s.connections, now.connections);
  set(s.resident_bytes, resident_bytes());
  advance(s.steps, now.beat.steps);
  advance(s.preemptions, scheduler.preemptions);
  const SpeculationStats& speculation = now.stats.speculation;
  advance(s.verifications, speculation.steps);
  for (int64_t i = 0; i < kMaxDrafts; ++i) {
    const std::map<std::string, std::string> place = {{"place", std::to_string(i + 1)}};
    advance(s.drafted.Add(place), speculation.drafted_by_position[static_cast<size_t>(i)]);
    advance(s.accepted.Add(place), speculation.accepted_by_position[static_cast<size_t>(i)]);
  }
  for (size_t g = 0; g < scheduler.groups.size(); ++g) {
    const SchedulerStats::Group& group = scheduler.groups[g];
    const std::string name = std::to_string(g);
    set(s.blocks.Add({{"group", name}, {"state", "used"}}), group.used);
    set(s.blocks.Add({{"group", name}, {"state", "cached_free"}}), group.cached_free);
    set(s.blocks.Add({{"group", name}, {"state", "all"}}), group.blocks);
  }
  set(s.weight_bytes, now.weight_bytes);
  set(s.cache_bytes, now.cache_bytes);
  set(s.step_bytes, now.weight_bytes_per_step);
  s.bandwidth.Set(now.memory_bytes_per_second);
  const int64_t time = now_us();
  if (now.memory_bytes_per_second > 0 && time - s.last_scrape_us > 100'000) {
    const double read =
        static_cast<double>(now.beat.steps - s.last_steps) * static_cast<double>(now.weight_bytes_per_step);
    s.bound_fraction.Set(read / (static_cast<double>(time - s.last_scrape_us) * 1e-6) /
                         now.memory_bytes_per_second);
    s.last_scrape_us = time;
    s.last_steps = now.beat.steps;
  }
  return prometheus::TextSerializer().Serialize(s.registry.Collect());
}

}  // namespace atom::server
