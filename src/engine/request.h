// What a caller asks of the engine and what it is told while tokens come.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/sampler.h"
#include "scheduler/scheduler.h"

namespace atom {

using RequestId = int64_t;

struct Request {
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  int64_t max_tokens = 256;       // output tokens of each sample; 0 computes the prompt only
  int32_t n = 1;                  // samples
  int priority = 0;               // lower numbers go first
  std::vector<std::string> stop;  // texts that end a sample; needs a tokenizer
  bool include_stop = false;      // keep the matched stop text
  // What the text of every sample must be; null: anything. Stop tokens come only where it may end, and it
  // ends by itself where nothing can follow, before min_tokens too.
  std::shared_ptr<text::GrammarMasks> grammar;
  int32_t prompt_logprobs = -1;  // k: every prompt token's log-probability and the k best at its place
  bool reuse_prefix = true;
  std::string cache_salt;  // prefixes are shared among equal salts only
  // Called with the logits of every prompt row, in any order, from worker threads.
  std::function<void(int64_t row, std::span<const float> logits)> logits_sink;
};

// What speculation did: steps that verified drafts, drafts verified, and those that were right, in all and by
// their place after the last token.
struct SpeculationStats {
  int64_t steps = 0, drafted = 0, accepted = 0;
  std::array<int64_t, kMaxDrafts> drafted_by_position{}, accepted_by_position{};

  void add(int64_t drafts, int64_t right);
  void add(const SpeculationStats& other);
  SpeculationStats since(const SpeculationStats& before) const;
};

// "40 steps, 120 drafted, 81 right (0.85 0.67 0.51 by place)".
std::string to_string(const SpeculationStats& stats);

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;                   // of the prompt, reused from the prefix cache
  ReuseStop reuse_stop = ReuseStop::disabled;  // why the next block was not
  int64_t output_tokens = 0;                   // generated, the stop token included
  SpeculationStats speculation;
};

// News of one sample. Text is complete characters; deltas concatenate to the whole.
struct OutputDelta {
  RequestId request = 0;
  int32_t index = 0;  // sample, 0 .. n-1
  std::string text;
  std::vector<int32_t> token_ids;                   // new since the last delta
  std::vector<std::vector<TokenLogprob>> logprobs;  // parallel to token_ids, if asked
  std::vector<std::vector<TokenLogprob>>
      prompt_logprobs;                 // for prompt tokens 1, 2, ..., as they become known
  std::optional<FinishReason> finish;  // set in the last delta of the sample
  std::string error;                   // with FinishReason::failed
  Usage usage;                         // valid with finish
};

// Called on the engine's thread; must be quick and must not throw.
using OutputSink = std::function<void(OutputDelta&&)>;

}  // namespace atom
