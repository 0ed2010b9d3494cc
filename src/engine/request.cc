#include "engine/request.h"

#include <fmt/format.h>

namespace atom {

void SpeculationStats::add(int64_t drafts, int64_t right) {
  ++steps;
  drafted += drafts;
  accepted += right;
  for (int64_t i = 0; i < drafts; ++i) {
    ++drafted_by_position[i];
    accepted_by_position[i] += i < right;
  }
}

void SpeculationStats::add(const SpeculationStats& other) {
  steps += other.steps;
  drafted += other.drafted;
  accepted += other.accepted;
  for (int64_t i = 0; i < kMaxDrafts; ++i) {
    drafted_by_position[i] += other.drafted_by_position[i];
    accepted_by_position[i] += other.accepted_by_position[i];
  }
}

SpeculationStats SpeculationStats::since(const SpeculationStats& before) const {
  SpeculationStats s = *this;
  s.steps -= before.steps;
  s.drafted -= before.drafted;
  s.accepted -= before.accepted;
  for (int64_t i = 0; i < kMaxDrafts; ++i) {
    s.drafted_by_position[i] -= before.drafted_by_position[i];
    s.accepted_by_position[i] -= before.accepted_by_position[i];
  }
  return s;
}

std::string to_string(const SpeculationStats& s) {
  std::string places;
  for (int64_t i = 0; i < kMaxDrafts && s.drafted_by_position[i] > 0; ++i) {
    places += fmt::format(
        "{}{:.2f}", i > 0 ? " " : "",
        static_cast<double>(s.accepted_by_position[i]) / static_cast<double>(s.drafted_by_position[i]));
  }
  return fmt::format("{} steps, {} drafted, {} right ({} by place)", s.steps, s.drafted, s.accepted, places);
}

}  // namespace atom
