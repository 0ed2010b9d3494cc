#include "engine/model_comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "nn/context.h"

namespace atom {
namespace {

constexpr int kBest = 5;  // tokens whose log-probabilities are kept for each that follows

// Gathers the choices of one sequence, whose rows come in order.
class ChoiceRecorder final : public Observer {
 public:
  explicit ChoiceRecorder(ModelTrace& trace) : trace_(trace) {}
  void observe(Choice kind, const std::string& block, const Tensor& choices) override {
    ModelTrace::Choices& to = (kind == Choice::experts ? trace_.experts : trace_.positions)[block];
    to.each = choices.dim(1);
    for (int64_t r = 0; r < choices.dim(0); ++r) {
      const int32_t* row = choices.row<int32_t>(r);
      to.ids.insert(to.ids.end(), row, row + to.each);
      std::sort(to.ids.end() - to.each, to.ids.end());
    }
  }

 private:
  ModelTrace& trace_;
};

void serve(Engine& engine, Request request, const std::function<void(OutputDelta&)>& take) {
  const std::string error = serve_alone(engine, std::move(request), take);
  if (!error.empty()) throw failed("a step failed: {}", error);
}

// How many choices there are and how many are the same; `clean` becomes the first row that chose otherwise,
// if that comes before.
void compare_choices(const std::map<std::string, ModelTrace::Choices>& reference,
                     const std::map<std::string, ModelTrace::Choices>& other, bool from_the_first,
                     int64_t& all, int64_t& same, int64_t& clean) {
  CHECK(reference.size() == other.size(), "the two have other blocks");
  for (const auto& [block, want] : reference) {
    const ModelTrace::Choices& got = other.at(block);
    CHECK(want.each == got.each && want.ids.size() == got.ids.size(), "{} chose more or less often", block);
    const int64_t rows = static_cast<int64_t>(want.ids.size()) / want.each;
    for (int64_t row = from_the_first ? 0 : want.each; row < rows; ++row) {
      const std::span mine(want.ids.data() + row * want.each, static_cast<size_t>(want.each));
      const std::span theirs(got.ids.data() + row * want.each, static_cast<size_t>(want.each));
      std::vector<int32_t> both;
      std::ranges::set_intersection(mine, theirs, std::back_inserter(both));
      all += want.each;
      same += static_cast<int64_t>(both.size());
      if (both.size() < mine.size()) clean = std::min(clean, row);
    }
  }
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

ModelTrace trace_model(LoadedModel& model, std::span<const int32_t> prompt, int64_t kept_rows,
                       int64_t output_tokens) {
  ModelTrace trace;
  trace.vocab = model.workers().vocab();
  const auto rows = static_cast<int64_t>(prompt.size());
  trace.first_row = std::max<int64_t>(0, rows - kept_rows);
  trace.logits.resize(static_cast<size_t>((rows - trace.first_row) * trace.vocab));

  Request whole{.prompt = {prompt.begin(), prompt.end()}, .max_tokens = 0, .prompt_logprobs = 0};
  whole.reuse_prefix = false;
  whole.logits_sink = [&](int64_t row, std::span<const float> values) {
    if (row < trace.first_row) return;
    std::copy(values.begin(), values.end(), trace.logits.begin() + (row - trace.first_row) * trace.vocab);
  };
  ChoiceRecorder recorder(trace);
  model.workers().observe(&recorder);
  serve(model.engine(), std::move(whole), [](OutputDelta&) {});
  model.workers().observe(nullptr);

  Request answer{.prompt = {prompt.begin(), prompt.end()}, .max_tokens = output_tokens};
  answer.reuse_prefix = false;
  answer.sampling.temperature = 0;
  answer.sampling.logprobs = kBest;
  answer.sampling.ignore_eos = true;
  serve(model.engine(), std::move(answer), [&](OutputDelta& delta) {
    trace.output.insert(trace.output.end(), delta.token_ids.begin(), delta.token_ids.end());
    for (auto& best : delta.logprobs) trace.output_logprobs.push_back(std::move(best));
  });
  return trace;
}

ModelComparison compare(const ModelTrace& reference, const ModelTrace& trace) {
  CHECK(reference.logits.size() == trace.logits.size() && reference.vocab == trace.vocab &&
        reference.output.size() == trace.output.size());
  ModelComparison c;
  const auto vocab = static_cast<size_t>(reference.vocab);
  c.rows = static_cast<int64_t>(reference.logits.size() / vocab);
  int64_t clean = reference.first_row + c.rows;
  compare_choices(reference.experts, trace.experts, true, c.experts, c.same_experts, clean);
  compare_choices(reference.positions, trace.positions, false, c.positions, c.same_positions, clean);
  c.same_rows = std::max<int64_t>(0, clean - reference.first_row);

  std::vector<double> errors;
  for (int64_t row = 0; row < c.rows; ++row) {
    const std::span want(reference.logits.data() + row * reference.vocab, vocab);
    const std::span got(trace.logits.data() + row * trace.vocab, vocab);
    double difference = 0, largest = 0;
    for (size_t i = 0; i < vocab; ++i) {
      const double d = std::abs(static_cast<double>(got[i]) - want[i]);
      if (d > difference || std::isnan(d)) difference = d;  // a NaN stays
      largest = std::max(largest, std::abs(static_cast<double>(want[i])));
    }
    double error = difference / std::max(largest, 1e-30);
    c.largest = std::max(c.largest, largest);
    if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
    errors.push_back(error);
    c.worst = std::max(c.worst, error);
    c.same_best +=
        std::ranges::max_element(want) - want.begin() == std::ranges::max_element(got) - got.begin();
    if (row < c.same_rows) c.worst_same = c.worst;
  }
  c.median_same = median({errors.begin(), errors.begin() + std::min(c.same_rows, c.rows)});
  c.median = median(std::move(errors));

  c.output = static_cast<int64_t>(reference.output.size());
  const auto [want, got] = std::ranges::mismatch(reference.output, trace.output);
  c.same_output = want - reference.output.begin();
  if (want != reference.output.end()) {
    c.output_gap = std::numeric_limits<double>::infinity();
    const auto& best = reference.output_logprobs[static_cast<size_t>(c.same_output)];
    for (const TokenLogprob& entry : best) {
      if (entry.id == *got) c.output_gap = static_cast<double>(best.front().logprob) - entry.logprob;
    }
  }
  return c;
}

std::vector<std::string> disagreements(const ModelComparison& c, const ComparisonLimits& limits) {
  std::vector<std::string> lines;
  auto say = [&]<class... T>(fmt::format_string<T...> format, T&&... values) {
    lines.push_back(fmt::format(format, std::forward<T>(values)...));
  };
  const double worst = limits.every ? c.worst : c.worst_same;
  if (worst > limits.error)
    say("a row's logits are off by {:.1e} of the largest (limit {:.1e})", worst, limits.error);
  if (const double half = limits.every ? c.median : c.median_same; half > limits.median)
    say("half of the rows' logits are off by {:.1e} of the largest or more (limit {:.1e})", half,
        limits.median);
  auto check_choices = [&](const char* what, int64_t all, int64_t same) {
    if (static_cast<double>(same) < limits.choices * static_cast<double>(all))
      say("{} of {} {} are the reference's (at least {:g} must be)", same, all, what, limits.choices);
  };
  // Of tokens that are near each other rounding decides.
  const double near = 2 * limits.error * c.largest;
  if ((limits.every || c.experts + c.positions == 0) && c.same_output < c.output && c.output_gap > near) {
    say("token {} that follows is another one, whose log-probability is {:.2g} lower (at most {:.2g} may be)",
        c.same_output + 1, c.output_gap, near);
  }
  check_choices("chosen experts", c.experts, c.same_experts);
  check_choices("chosen positions", c.positions, c.same_positions);
  return lines;
}

}  // namespace atom
