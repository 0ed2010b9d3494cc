// Printing of plans, filling of results.
#include "scheduler/step_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"

namespace atom {

BlockTableView StepPlan::table(int64_t sequence, int64_t group) const {
  CHECK(group >= 0 && group < groups, "group {} of {}", group, groups);
  const TableSlice& slice = tables.at(sequence * groups + group);
  return {slice.first_block, std::span(blocks).subspan(slice.begin, slice.count)};
}

std::string to_string(const StepPlan& plan) {
  std::string text =
      fmt::format("step {}: {} sequences, {} rows\n", plan.step, plan.sequences.size(), plan.rows());
  for (const StepPlan::StateCopy& copy : plan.state_copies) {
    text += copy.from == kNoSlot ? fmt::format("  zero slot {}\n", copy.to)
                                 : fmt::format("  copy slot {} to {}\n", copy.from, copy.to);
  }
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlannedSequence& sequence = plan.sequences[i];
    text += fmt::format("  #{} context {} +{}", sequence.id, sequence.context, sequence.tokens);
    if (sequence.drafts > 0) text += fmt::format(" drafts {}", sequence.drafts);
    if (sequence.sample) text += " sample";
    if (sequence.propose > 0) text += fmt::format(" propose {}", sequence.propose);
    if (sequence.logit_rows != (sequence.sample ? 1 + sequence.drafts : 0))
      text += fmt::format(" logits {}", sequence.logit_rows);
    if (sequence.slot != kNoSlot) text += fmt::format(" slot {}", sequence.slot);
    text += " tables";
    for (int64_t g = 0; g < plan.groups; ++g) {
      const BlockTableView table = plan.table(i, g);
      text += fmt::format("{} {}:", g > 0 ? " |" : "", g);
      if (table.first_block > 0) text += fmt::format(" @{}", table.first_block);
      if (!table.ids.empty()) text += fmt::format(" {}", fmt::join(table.ids, " "));
    }
    text += '\n';
  }
  return text;
}

void StepResult::add(SequenceId id, std::span<const int32_t> tokens, bool finished,
                     std::span<const int32_t> drafts) {
  sequences.push_back({.id = id,
                       .first_token = static_cast<int64_t>(token_ids.size()),
                       .tokens = static_cast<int64_t>(tokens.size()),
                       .drafts = static_cast<int64_t>(drafts.size()),
                       .finished = finished});
  token_ids.insert(token_ids.end(), tokens.begin(), tokens.end());
  token_ids.insert(token_ids.end(), drafts.begin(), drafts.end());
}

void StepResult::add_failed(SequenceId id) { sequences.push_back({.id = id, .failed = true}); }

}  // namespace atom
