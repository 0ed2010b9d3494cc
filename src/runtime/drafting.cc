#include "runtime/drafting.h"

#include <algorithm>

namespace atom {
namespace {

// A step of the drafter: a plan whose token_ids are the tokens after the rows.
struct DraftStep {
  StepPlan plan;
  std::vector<int32_t> hidden_rows;  // by row: what it goes on from
  std::vector<size_t> sequences;     // by logit row: the sequence that a token is drafted for

  explicit DraftStep(const StepPlan& step) {
    plan.block_size = step.block_size;
    plan.groups = step.groups;
    plan.blocks = step.blocks;
  }
  void begin_sequence(const StepPlan& step, size_t i, int64_t rows, int64_t context, bool wanted) {
    plan.sequences.push_back({.id = step.sequences[i].id,
                              .first_row = plan.rows(),
                              .tokens = rows,
                              .context = context,
                              .sample = wanted,
                              .logit_rows = wanted});
    const auto tables = step.tables.begin() + static_cast<int64_t>(i) * step.groups;
    plan.tables.insert(plan.tables.end(), tables, tables + step.groups);
    if (wanted) sequences.push_back(i);
  }
  void add_row(int32_t next_token, int64_t position, int64_t hidden_row) {
    plan.token_ids.push_back(next_token);
    plan.positions.push_back(static_cast<int32_t>(position));
    hidden_rows.push_back(static_cast<int32_t>(hidden_row));
  }
};

// All rows of the step but those of wrong drafts and those whose next token is not known yet.
DraftStep first_step(const StepPlan& step, std::span<const DraftInput> inputs) {
  DraftStep draft(step);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const PlannedSequence& s = step.sequences[i];
    const DraftInput& in = inputs[i];
    const auto known = static_cast<int64_t>(in.known.size()),
               appended = static_cast<int64_t>(in.appended.size());
    const int64_t right = s.tokens - s.drafts + std::max<int64_t>(0, appended - 1);
    const int64_t rows = std::min(right, known + appended - 1 - s.context);
    if (rows <= 0) continue;
    draft.begin_sequence(step, i, rows, s.context, in.propose > 0);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t next = s.context + r + 1;
      draft.add_row(next < known ? in.known[next] : in.appended[next - known], next - 1, s.first_row + r);
    }
  }
  return draft;
}

// One row for each sequence that wants another token, behind its row in the step before.
DraftStep next_step(const StepPlan& step, const DraftStep& before, std::span<const DraftInput> inputs,
                    std::span<const std::vector<int32_t>> drafts, size_t drafted) {
  DraftStep draft(step);
  size_t logit_row = 0;
  for (const PlannedSequence& s : before.plan.sequences) {
    if (!s.sample) continue;
    const size_t row = logit_row++, i = before.sequences[row];
    if (drafts[i].size() < drafted || static_cast<int64_t>(drafted) >= inputs[i].propose) continue;
    const int64_t position = s.context + s.tokens;
    draft.begin_sequence(step, i, 1, position, true);
    draft.add_row(drafts[i].back(), position, static_cast<int64_t>(row));
  }
  return draft;
}

std::vector<int32_t> rope_lengths(const DraftStep& step, const StepPlan& original,
                                  std::span<const DraftInput> inputs) {
  std::vector<int32_t> lengths;
  size_t i = 0;
  for (const PlannedSequence& s : step.plan.sequences) {
    while (original.sequences[i].id != s.id) ++i;
    for (int64_t r = 0; r < s.tokens; ++r) {
      lengths.push_back(static_cast<int32_t>(std::max(inputs[i].prompt_tokens, s.context + r + 1)));
    }
  }
  return lengths;
}

// By logit row; none if this rank does not choose, or not on a device, or cannot for all.
std::vector<ops::TokenChoice> device_choices(const ModelInstance& model, const DraftStep& step,
                                             std::span<const SampledSequence> sequences) {
  if (!model.chooses() || sequences.empty()) return {};
  std::vector<ops::TokenChoice> choices;
  for (const size_t i : step.sequences) {
    const std::optional<ops::TokenChoice> choice = sequences[i].device_choice(model.choosable());
    if (!choice) return {};
    choices.push_back(*choice);
  }
  return choices;
}

}  // namespace

void broadcast(Stream& stream, Communicator& axis, std::span<int32_t> values) {
  if (axis.size() == 1) return;
  const Tensor t = make_tensor(values.data(), DType::i32, {static_cast<int64_t>(values.size())});
  if (axis.rank() != 0) return axis.recv(stream, t, 0);
  for (int to = 1; to < axis.size(); ++to) axis.send(stream, t, to);
}

std::vector<std::vector<int32_t>> draft_tokens(ModelInstance& model, ThreadPool& pool, Communicator& axis,
                                               const StepPlan& plan, std::span<const DraftInput> inputs,
                                               std::span<SampledSequence> sequences) {
  std::vector<std::vector<int32_t>> drafts(inputs.size());
  Stream stream(pool);
  DraftStep step = first_step(plan, inputs);
  for (size_t drafted = 0; !step.plan.empty();) {
    std::vector<int32_t> lengths;
    if (model.rope_depends_on_length()) lengths = rope_lengths(step, plan, inputs);
    const std::vector<ops::TokenChoice> choices = device_choices(model, step, sequences);
    const Tensor logits =
        model.draft(pool, step.plan, lengths, step.hidden_rows, static_cast<int>(drafted), choices);
    if (!logits) break;
    std::vector<int32_t> tokens(step.sequences.size());
    if (!choices.empty()) {
      std::ranges::copy(model.chosen_ids(), tokens.begin());
    } else if (axis.rank() == 0) {
      pool.parallel_for(static_cast<int64_t>(tokens.size()), 1, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const std::span<float> values(logits.row<float>(row), static_cast<size_t>(logits.dim(1)));
          tokens[row] = sequences[step.sequences[row]].choose(values);
        }
      });
    }
    for (size_t row = 0; row < tokens.size() && !sequences.empty(); ++row) {
      if (tokens[row] >= 0 && !sequences[step.sequences[row]].append(tokens[row])) tokens[row] = -1;
    }
    broadcast(stream, axis, tokens);
    for (size_t row = 0; row < tokens.size(); ++row) {
      if (tokens[row] >= 0) drafts[step.sequences[row]].push_back(tokens[row]);
    }
    ++drafted;
    step = next_step(plan, step, inputs, drafts, drafted);
  }
  return drafts;
}

}  // namespace atom
