// atom verify: a model as the flags would have it computed beside the float32 reference on the processor.
#include <fmt/format.h>

#include "base/error.h"
#include "cli/command.h"
#include "engine/device_option.h"
#include "engine/model_comparison.h"
#include "ops/op.h"

namespace atom::cli {
namespace {

constexpr int64_t kShortTokens = 24, kLongTokens = 512, kKeptRows = 64, kOutputTokens = 16;
constexpr int64_t kBatchedTokens = 128;  // all logits of a step are alive at once
// What tests/golden holds float32 to, ties aside. Otherwise somewhat more than what rounding of activations,
// or with it of keys and values to three digits, costs the small random models there: a single row may be far
// off where a state or near choices amplify it, half of them not.
constexpr ComparisonLimits kExact{.error = 2e-4, .choices = 0.999, .every = true},
    kRounded{.error = 0.3, .median = 0.05, .choices = 0.9},
    kFp8Cache{.error = 0.4, .median = 0.15, .choices = 0.7};

struct Flags {
  ModelOptions model;
  int64_t long_tokens = 0;
  std::optional<double> limit;
  bool json = false;
};

struct Context {
  const char* name;
  int64_t tokens;
};

// One way of computing, and what it gave for each context.
struct Computed {
  std::string way;  // for people
  bool exact, fp8_cache, on_cpu;
  std::vector<ModelTrace> traces;
};

Computed compute(ModelOptions options, std::span<const Context> contexts) {
  options.num_speculative_tokens = 0;
  options.prefix_caching = false;
  options.max_num_seqs = 1;
  options.max_model_len = contexts.back().tokens + kOutputTokens;
  if (options.max_num_batched_tokens == 0) options.max_num_batched_tokens = kBatchedTokens;
  ProgressLine progress;
  LoadedModel model(options,
                    [&](const char* phase, int64_t done, int64_t total) { progress(phase, done, total); });
  progress.clear();
  Computed result{.way = fmt::format("{}, {}, cache in {}", to_string(model.device()), model.dtype(),
                                     model.workers().cache_types_text()),
                  .exact = model.dtype() == "float32" && model.cache_dtype() == DType::f32,
                  .fp8_cache = model.cache_dtype() == DType::f8e4m3,
                  .on_cpu = model.device().kind == Device::cpu};
  for (const Context& context : contexts) {
    const std::vector<int32_t> ids = random_ids(context.tokens, model.workers().vocab(), 1);
    result.traces.push_back(trace_model(model, ids, kKeptRows, kOutputTokens));
  }
  return result;
}

// A prompt beyond what sparse attention chooses, if the model does; no longer than the model's context.
int64_t long_tokens(const Flags& f) {
  const ModelFiles files = open_model_files(locate_model(f.model.model));
  const ConfigReader config(files.config, "config.json");
  int64_t tokens = f.long_tokens;
  if (tokens == 0) tokens = std::max(kLongTokens, config.integer_or("index_topk", 0) + kLongTokens / 2);
  int64_t most = requested_limits({}, config).max_model_len;
  if (f.model.max_model_len > 0) most = std::min(most, f.model.max_model_len);
  most -= kOutputTokens;
  if (most < 1)
    throw invalid("--max-model-len {}: verify needs {} at least", most + kOutputTokens, kOutputTokens + 1);
  if (f.long_tokens > most)
    throw invalid("--long-tokens {}: the model's context has room for {} and {} more", f.long_tokens, most,
                  kOutputTokens);
  return std::min(tokens, most);
}

Json to_json(const ModelComparison& c) {
  Json result = {
      {"rows", c.rows},           {"worst_error", c.worst},    {"median_error", c.median},
      {"same_best", c.same_best}, {"output_tokens", c.output}, {"same_output_tokens", c.same_output}};
  if (c.experts > 0) result["experts"] = {{"chosen", c.experts}, {"same", c.same_experts}};
  if (c.positions > 0) result["positions"] = {{"chosen", c.positions}, {"same", c.same_positions}};
  if (c.experts + c.positions > 0) {
    result["rows_before_another_choice"] = c.same_rows;
    result["worst_error_before_another_choice"] = c.worst_same;
  }
  return result;
}

void print_text(const Context& context, const ModelComparison& c) {
  std::string line = fmt::format(
      "{} context, {} tokens: logits within {:.1e} of the largest (half of {} rows {:.1e}), "
      "{} best tokens alike",
      context.name, context.tokens, c.worst, c.rows, c.median, c.same_best);
  if (c.experts > 0) line += fmt::format(", {} of {} chosen experts", c.same_experts, c.experts);
  if (c.positions > 0) line += fmt::format(", {} of {} chosen positions", c.same_positions, c.positions);
  if (c.experts + c.positions > 0) {
    line += fmt::format("; {} rows before the first other choice within {:.1e}", c.same_rows, c.worst_same);
  }
  print_line(fmt::format("{}; {} of {} tokens that follow", line, c.same_output, c.output));
}

void run(const Flags& f) {
  const int64_t longest = long_tokens(f);
  std::vector<Context> contexts;
  if (longest > kShortTokens) contexts.push_back({"short", kShortTokens});
  contexts.push_back({"long", longest});

  ModelOptions plain;
  plain.model = f.model.model;
  plain.load_format = f.model.load_format;
  plain.quantize = f.model.quantize;
  plain.threads = f.model.threads;
  plain.loader_threads = f.model.loader_threads;
  plain.mmap = f.model.mmap;
  plain.device = "cpu";
  plain.dtype = plain.kv_cache_dtype = "float32";
  const Computed other = compute(f.model, contexts);
  // The processor's own fast kernels are no reference for themselves.
  if (other.on_cpu) ops::use_references_alone(true);
  Computed reference = compute(plain, contexts);
  ops::use_references_alone(false);
  if (other.on_cpu) reference.way += ", plain kernels";

  ComparisonLimits limits = other.exact ? kExact : other.fp8_cache ? kFp8Cache : kRounded;
  if (f.limit) limits.error = *f.limit;
  Json lines = Json::array();
  std::vector<std::string> problems;
  for (size_t i = 0; i < contexts.size(); ++i) {
    const ModelComparison c = compare(reference.traces[i], other.traces[i]);
    for (const std::string& problem : disagreements(c, limits))
      problems.push_back(fmt::format("{} context: {}", contexts[i].name, problem));
    if (f.json) {
      Json line = to_json(c);
      line["tokens"] = contexts[i].tokens;
      lines.push_back(std::move(line));
    } else {
      print_text(contexts[i], c);
    }
  }
  if (f.json) {
    print_line(Json{
        {"ok", problems.empty()},
        {"computed", other.way},
        {"reference", reference.way},
        {"limit", limits.error},
        {"contexts", lines},
        {"problems",
         problems}}.dump(1));
  } else if (problems.empty()) {
    print_line(fmt::format("{}: agrees with the reference ({})", other.way, reference.way));
  }
  if (!problems.empty())
    throw failed("{} does not agree with {}: {}", other.way, reference.way, fmt::join(problems, "; "));
}

}  // namespace

void add_verify(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("verify",
                                      "the model as the flags have it computed, beside the float32 reference "
                                      "on the processor (its plain kernels if "
                                      "the flags say the processor too: much slower)");
  add_model_flags(verb, f->model);
  // One sequence at a time, computed from its first token, a token a step.
  for (const char* unused : {"--num-speculative-tokens", "--max-num-seqs", "--no-prefix-caching"})
    verb->remove_option(verb->get_option(unused));
  verb->add_option("--long-tokens", f->long_tokens,
                   "of the long context; default 512, or 256 more than sparse attention chooses")
      ->check(CLI::Range(1, 1 << 20));
  verb->add_option("--limit", f->limit,
                   "largest error of a logit over the row's largest; default 2e-4 for float32, 0.3 where "
                   "activations are rounded (0.05 for half of the rows), 0.4 with an FP8 cache (0.15)")
      ->check(above_zero());
  verb->add_flag("--json", f->json, "figures and problems as JSON");
  verb->callback([f] { run(*f); });
}

}  // namespace atom::cli
