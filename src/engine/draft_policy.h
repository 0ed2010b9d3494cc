// How many tokens to draft ahead of each sequence, when the user leaves it open.
//
// A draft row pays if it adds tokens faster than the engine makes them anyway: if the probability that it is
// right, and all before it, exceeds what the row costs, counted in tokens that the engine makes in that time.
// Both are measured while it runs: how often drafts at each place are right, per sequence; and how step times
// grow with drafts, by a regression over steps of decodes, per size of batch. Which number is chosen changes
// no token.
#pragma once
#include <array>
#include <cstdint>

#include "scheduler/step_plan.h"

namespace atom {

class DraftPolicy {
 public:
  explicit DraftPolicy(int64_t most) : most_(most) { right_.fill(kFirstGuess); }

  // What is known of one sequence.
  struct Record {
    std::array<double, kMaxDrafts>
        right{};                    // share of drafts that were right, of those that all before them were
    int64_t choices = 0, idle = 0;  // choices made, and how many of the last were 0
  };
  // A new sequence begins with what the others showed.
  Record begin() const { return {.right = right_}; }
  // A step verified `drafts` drafts, of which the first `right` were right.
  void verified(Record& record, int64_t drafts, int64_t right);
  // A step of nothing but `sequences` decodes, with `drafts` rows of drafts in all, appended `tokens` tokens.
  void timed(int64_t sequences, double drafts, int64_t tokens, double seconds);
  // Tokens to draft ahead of a sequence next, beside `sequences` others and itself.
  int64_t choose(Record& record, int64_t sequences);
  // Drafts have not paid for so long that the sequence can do without a drafter.
  static bool given_up(const Record& record) { return record.idle >= kPatience; }

 private:
  static constexpr double kFirstGuess = 0.7;
  static constexpr int64_t kProbation = 12;  // steps before costs count
  static constexpr int64_t kPatience = 24;   // choices of 0 in a row
  static constexpr int64_t kExplore = 24;    // every so many choices another number is tried
  static constexpr int64_t kBatchSizes = 8;  // powers of two

  // Sums over steps, each worth a little less than the one after it.
  struct Costs {
    int64_t steps = 0;
    double typical = 0;  // seconds
    double weight = 0, drafts = 0, seconds = 0, drafts2 = 0, drafts_seconds = 0, tokens = 0;
    double per_draft() const;
  };
  Costs& costs(int64_t sequences);

  const int64_t most_;
  std::array<double, kMaxDrafts> right_;
  std::array<Costs, kBatchSizes> costs_;
};

}  // namespace atom
