// The policy on simulated machines: it finds what pays.
#include "engine/draft_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace atom {
namespace {

constexpr int64_t kMost = 4;

// A machine whose step takes 1 + cost per draft row (and noise), and whose drafts are right with probability
// `right`.
struct Machine {
  double right, cost;
  double tokens_per_second(int64_t k) const {
    double tokens = 1, p = 1;
    for (int64_t i = 0; i < k; ++i) tokens += p *= right;
    return tokens / (1 + cost * static_cast<double>(k));
  }
};

// Share of the best constant number's speed that the policy reaches for one sequence after another.
double share_of_best(const Machine& machine, int64_t sequences) {
  DraftPolicy policy(kMost);
  std::mt19937 random(1);
  std::uniform_real_distribution<double> uniform;
  double seconds = 0, tokens = 0;
  for (int round = 0; round < 4; ++round) {
    std::vector<DraftPolicy::Record> records(sequences, policy.begin());
    std::vector<int64_t> drafts(sequences);
    for (int step = 0; step < 400; ++step) {
      int64_t rows = 0, appended = 0;
      for (int64_t i = 0; i < sequences; ++i) {
        int64_t right = 0;
        while (right < drafts[i] && uniform(random) < machine.right) ++right;
        if (drafts[i] > 0) policy.verified(records[i], drafts[i], right);
        rows += drafts[i];
        appended += 1 + right;
      }
      const double n = static_cast<double>(sequences);
      const double time =
          n * (1 + machine.cost * static_cast<double>(rows) / n) * (1 + .05 * uniform(random));
      // One step in twenty is interrupted for as long as many take.
      policy.timed(sequences, static_cast<double>(rows), appended, uniform(random) < .05 ? 30 * time : time);
      if (round > 0) seconds += time / n, tokens += static_cast<double>(appended) / n;
      for (int64_t i = 0; i < sequences; ++i) {
        drafts[i] = DraftPolicy::given_up(records[i]) ? 0 : policy.choose(records[i], sequences);
      }
    }
  }
  double best = 0;
  for (int64_t k = 0; k <= kMost; ++k) best = std::max(best, machine.tokens_per_second(k) / 1.025);
  return tokens / seconds / best;
}

TEST(DraftPolicy, FindsWhatPays) {
  for (const Machine& machine :
       {Machine{.95, .05}, {.9, .2}, {.7, .1}, {.5, .3}, {.3, .1}, {.3, .6}, {0, .2}, {.8, 1}}) {
    for (const int64_t sequences : {1, 7}) {
      EXPECT_GT(share_of_best(machine, sequences), .93)
          << "right " << machine.right << " cost " << machine.cost << " sequences " << sequences;
    }
  }
}

TEST(DraftPolicy, DoesWithoutADrafterThatIsNeverRight) {
  DraftPolicy policy(kMost);
  DraftPolicy::Record record = policy.begin();
  for (int step = 0; step < 200 && !DraftPolicy::given_up(record); ++step) {
    const int64_t drafts = policy.choose(record, 1);
    policy.verified(record, drafts, 0);
    policy.timed(1, static_cast<double>(drafts), 1, 1 + .2 * static_cast<double>(drafts));
  }
  EXPECT_TRUE(DraftPolicy::given_up(record));
}

}  // namespace
}  // namespace atom
