#include "engine/draft_policy.h"

#include <algorithm>
#include <bit>

namespace atom {
namespace {

constexpr double kForget = 0.98;         // per step, of costs
constexpr double kLearn = 0.05;          // per step, of one sequence's drafts
constexpr double kLearnAll = 0.02;       // and of all sequences'
constexpr double kAssumedCost = 0.1;     // of a draft, in steps, until it has been measured
constexpr double kAssumedWeight = 0.2;   // in measured steps
constexpr double kTypicalStep = 1.05;    // a running median moves by this factor
constexpr double kOutlier = 3;           // times the typical step
constexpr double kSmallestCost = 0.005;  // nothing is free

}  // namespace

void DraftPolicy::verified(Record& record, int64_t drafts, int64_t right) {
  for (int64_t i = 0; i < std::min(drafts, right + 1); ++i) {
    const double value = i < right ? 1 : 0;
    record.right[i] += kLearn * (value - record.right[i]);
    right_[i] += kLearnAll * (value - right_[i]);
  }
}

DraftPolicy::Costs& DraftPolicy::costs(int64_t sequences) {
  const int width = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(1, sequences)));
  return costs_[std::min<int64_t>(width - 1, kBatchSizes - 1)];
}

void DraftPolicy::timed(int64_t sequences, double drafts, int64_t tokens, double seconds) {
  Costs& c = costs(sequences);
  const auto add = [&](double d, double s, double t, double weight) {
    c.weight += weight;
    c.drafts += weight * d;
    c.seconds += weight * s;
    c.drafts2 += weight * d * d;
    c.drafts_seconds += weight * d * s;
    c.tokens += weight * t;
  };
  // A step that lost its core to somebody else says nothing of drafts.
  c.typical = c.typical == 0 ? seconds : c.typical * (seconds > c.typical ? kTypicalStep : 1 / kTypicalStep);
  if (seconds > kOutlier * c.typical) return;
  if (c.weight == 0) {  // the assumption, as if measured
    const double n = static_cast<double>(sequences), plain = seconds / (1 + kAssumedCost * drafts / n);
    add(0, plain, n, kAssumedWeight);
    add(n * static_cast<double>(most_), plain * (1 + kAssumedCost * static_cast<double>(most_)), n,
        kAssumedWeight);
  }
  for (double* sum : {&c.weight, &c.drafts, &c.seconds, &c.drafts2, &c.drafts_seconds, &c.tokens})
    *sum *= kForget;
  add(drafts, seconds, static_cast<double>(tokens), 1);
  ++c.steps;
}

// Seconds: the slope of the regression line.
double DraftPolicy::Costs::per_draft() const {
  const double least = kSmallestCost * seconds / weight;
  const double variance = drafts2 / weight - (drafts / weight) * (drafts / weight);
  if (variance < 1e-3) return least;
  return std::max(least, (drafts_seconds / weight - drafts / weight * seconds / weight) / variance);
}

int64_t DraftPolicy::choose(Record& record, int64_t sequences) {
  const int64_t choice = record.choices++;
  const Costs& c = costs(sequences);
  // At first different numbers, so that there is something to measure.
  if (c.steps < kProbation) return c.steps % 3 == 2 ? 1 : most_;
  const double price = c.per_draft() * c.tokens / c.seconds;  // of a draft, in tokens
  int64_t drafts = 0;
  for (double probability = 1; drafts < most_; ++drafts) {
    probability *= record.right[drafts];
    if (probability <= price) break;
  }
  record.idle = drafts == 0 ? record.idle + 1 : 0;
  if (choice % kExplore == kExplore - 1) return drafts == 0 ? 1 : drafts - 1;
  return drafts;
}

}  // namespace atom
