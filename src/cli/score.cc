// atom score: the log-probability of each token given those before it.
#include <cmath>
#include <mutex>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "cli/command.h"

namespace atom::cli {
namespace {

struct Flags {
  ModelOptions model;
  std::string token_ids;
  std::optional<std::string> prompt;
  std::string logits_out;
};

void run(Flags f) {
  if (f.token_ids.empty() == !f.prompt.has_value()) throw invalid("score: give --token-ids or --prompt");
  // All logits of a step are alive at once: fewer rows a step keep that small.
  if (f.model.max_num_batched_tokens == 0) f.model.max_num_batched_tokens = 128;
  if (f.model.max_num_seqs == 0) f.model.max_num_seqs = 1;
  ProgressLine progress;
  LoadedModel model(f.model,
                    [&](const char* phase, int64_t done, int64_t total) { progress(phase, done, total); });
  progress.clear();

  Request request;
  request.prompt =
      f.prompt ? model.text().tokenizer().encode(*f.prompt) : parse_ids(f.token_ids, "--token-ids");
  request.max_tokens = 0;
  request.prompt_logprobs = 0;
  const std::vector<int32_t> ids = request.prompt;
  const int64_t rows = static_cast<int64_t>(ids.size()), vocab = model.workers().vocab();
  Buffer logits;
  if (!f.logits_out.empty()) {
    logits = Buffer(rows * vocab * static_cast<int64_t>(sizeof(float)));
    request.logits_sink = [&](int64_t row, std::span<const float> values) {
      std::copy(values.begin(), values.end(), static_cast<float*>(logits.data()) + row * vocab);
    };
  }
  std::vector<float> logprobs;
  const std::string error = serve_alone(model.engine(), std::move(request), [&](OutputDelta& delta) {
    for (const auto& entries : delta.prompt_logprobs) logprobs.push_back(entries.front().logprob);
  });
  if (!error.empty()) throw failed("scoring failed: {}", error);
  if (!f.logits_out.empty()) {
    const NamedTensor tensor{"logits", make_tensor(logits.data(), DType::f32, {rows, vocab})};
    write_safetensors(f.logits_out, std::span(&tensor, 1));
  }
  double total = 0;
  Json list = Json::array({nullptr});  // nothing comes before the first token
  for (const float logprob : logprobs) {
    total += logprob;
    list.push_back(logprob);
  }
  const double mean = logprobs.empty() ? 0 : total / static_cast<double>(logprobs.size());
  const Json result = {
      {"token_ids", ids}, {"logprobs", list}, {"total", total}, {"perplexity", std::exp(-mean)}};
  print_line(result.dump());
}

}  // namespace

void add_score(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  CLI::App* verb = app.add_subcommand("score", "log-probability of each token given its predecessors");
  add_model_flags(verb, f->model);
  verb->add_option("--token-ids", f->token_ids, "ids to score, comma separated");
  verb->add_option("--prompt", f->prompt, "text to score");
  verb->add_option("--logits-out", f->logits_out,
                   "safetensors file for all logits, tensor \"logits\" [tokens, vocab]")
      ->check(not_empty());
  verb->callback([f] { run(*f); });
}

}  // namespace atom::cli
