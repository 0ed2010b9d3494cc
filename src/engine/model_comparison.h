// One model computed in two ways on the same tokens, and how far the two are apart: what `atom verify` tells.
#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/loaded_model.h"

namespace atom {

// What one way of computing gave for one list of tokens.
struct ModelTrace {
  int64_t vocab = 0;
  int64_t first_row = 0;      // positions before it have no logits here
  std::vector<float> logits;  // [prompt - first_row, vocab]
  // By block: [prompt, choices of a row], in ascending order.
  struct Choices {
    int64_t each = 0;
    std::vector<int32_t> ids;
  };
  std::map<std::string, Choices> experts, positions;
  std::vector<int32_t> output;                             // the greedy tokens that follow
  std::vector<std::vector<TokenLogprob>> output_logprobs;  // the chosen one, then the best
};

// Runs `prompt`, keeping the logits of its last `kept_rows` rows and every choice, then once more for
// `output_tokens` greedy tokens, as it would be served. The model must have room for both together and no
// request under way. Throws Error if a step fails.
ModelTrace trace_model(LoadedModel& model, std::span<const int32_t> prompt, int64_t kept_rows,
                       int64_t output_tokens);

// Two traces of the same tokens. The error of a row is the largest difference of a logit over the largest
// logit of the reference.
struct ModelComparison {
  int64_t rows = 0;              // with logits
  double worst = 0, median = 0;  // errors
  double largest = 0;            // logit of the reference
  int64_t same_best = 0;         // rows with the same largest logit
  // Rows before the first one that chose otherwise: from there on, attention hands the difference down.
  int64_t same_rows = 0;
  double worst_same = 0, median_same = 0;
  int64_t experts = 0, same_experts = 0;  // choices in all, and those that the reference made too
  int64_t positions = 0, same_positions = 0;
  int64_t output = 0, same_output = 0;  // tokens that followed; how many before the first other one
  // The reference's log-probability of its own token less that of the first other one; infinite if that is
  // not among its best.
  double output_gap = 0;
};

ModelComparison compare(const ModelTrace& reference, const ModelTrace& trace);

// What is allowed. Where choices may differ, tokens that follow are not looked at.
struct ComparisonLimits {
  double error = 0;                                         // of each row that counts
  double median = std::numeric_limits<double>::infinity();  // of the rows that count
  double choices = 0.8;                                     // the least part of the reference's that are made
  // All rows count. Otherwise those before the first other choice: rounded activations choose otherwise where
  // two are near.
  bool every = false;
};

// What is beyond the limits, one line each; none if the two agree.
std::vector<std::string> disagreements(const ModelComparison& c, const ComparisonLimits& limits);

}  // namespace atom
