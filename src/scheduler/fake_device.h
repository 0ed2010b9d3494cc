// For tests: a device that stores, in place of KV, a digest of the whole prefix at each position. On every
// step it checks that each planned row finds the right digests wherever attention would read, and it derives
// the next token from the last one. A wrong, stale, freed or foreign block becomes a failed expectation; so
// does a slot whose state is not that of the sequence's computed tokens.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <unordered_map>
#include <vector>

#include "scheduler/scheduler.h"

namespace atom {

using Digest = uint64_t;

inline Digest digest_after(Digest before, int32_t token) {
  const uint64_t x = (before ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15u;
  return (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
}

class FakeDevice {
 public:
  // The token after a prefix of `position` tokens.
  using NextToken = std::function<int32_t(Digest prefix, int64_t position)>;

  // The i-th token drafted to follow a prefix.
  using Draft = std::function<int32_t(Digest prefix, int64_t position, int64_t i)>;

  FakeDevice(const SchedulerConfig& config, NextToken next_token)
      : groups_(config.groups), block_size_(config.block_size), next_token_(std::move(next_token)) {
    draft = [this](Digest prefix, int64_t position, int64_t) { return next_token_(prefix, position); };
    for (const CacheGroup& group : groups_) kv_.emplace_back(group.blocks * block_size_);
    states_.resize(config.states.slots, 1);
  }

  // Sequences named here end so in the next step that computes them.
  std::set<SequenceId> stop, fail;
  Draft draft;  // right unless replaced

  // The scheduler is asked for nothing but the true tokens of its sequences. A step planned ahead is run
  // before the one before it is committed.
  StepResult run(const StepPlan& planned, const Scheduler& scheduler) {
    StepPlan plan = planned;
    for (int32_t& id : plan.token_ids) {
      if (id < 0) id = chosen_.at(static_cast<size_t>(choosing_row(id)));
    }
    for (const StepPlan::StateCopy& copy : plan.state_copies) {
      states_.at(copy.to) = copy.from == kNoSlot ? 0 : states_.at(copy.from);
    }
    rows_.assign(plan.rows(), 0);
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      extend_digests(scheduler, plan, plan.sequences[i]);
      digest_rows(plan, plan.sequences[i]);
      for (size_t g = 0; g < groups_.size(); ++g) write(plan, i, g);
    }
    StepResult result{.step = plan.step};
    chosen_.clear();
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      for (size_t g = 0; g < groups_.size(); ++g) read(plan, i, g);
      answer(plan, i, result);
      if (!states_.empty()) advance_state(plan, plan.sequences[i], result.sequences.back().tokens);
    }
    return result;
  }

  // The sequence has ended.
  void forget(SequenceId id) { digests_.erase(id); }

 private:
  void extend_digests(const Scheduler& scheduler, const StepPlan& plan, const PlannedSequence& part) {
    std::vector<Digest>& digests = digests_[part.id];
    std::vector<int32_t> tokens = scheduler.find(part.id)->tokens;
    if (part.context == static_cast<int64_t>(tokens.size())) tokens.push_back(plan.token_ids[part.first_row]);
    while (digests.size() < tokens.size()) {
      digests.push_back(digest_after(digests.empty() ? 0 : digests.back(), tokens[digests.size()]));
    }
  }

  // Only rows of drafts may hold other tokens than the sequence.
  void digest_rows(const StepPlan& plan, const PlannedSequence& part) {
    const std::vector<Digest>& digests = digests_[part.id];
    Digest digest = part.context > 0 ? digests[part.context - 1] : 0;
    for (int64_t n = 0; n < part.tokens; ++n) {
      const int64_t row = part.first_row + n;
      ASSERT_EQ(plan.positions[row], part.context + n);
      rows_[row] = digest = digest_after(digest, plan.token_ids[row]);
      if (n < part.tokens - part.drafts) {
        ASSERT_EQ(digest, digests[part.context + n]);
      }
    }
  }

  void write(const StepPlan& plan, size_t i, size_t group) {
    const PlannedSequence& part = plan.sequences[i];
    for (int64_t n = 0; n < part.tokens; ++n) {
      if (Digest* slot = find(plan, i, group, part.context + n)) *slot = rows_[part.first_row + n];
    }
  }

  void read(const StepPlan& plan, size_t i, size_t group) {
    const PlannedSequence& part = plan.sequences[i];
    const int64_t window = groups_[group].window;
    const int64_t oldest = window > 0 ? std::max<int64_t>(0, part.context - (window - 1)) : 0;
    for (int64_t position = oldest; position < part.context + part.tokens; ++position) {
      const Digest* slot = find(plan, i, group, position);
      const Digest right = position < part.context ? digests_[part.id][position]
                                                   : rows_[part.first_row + position - part.context];
      ASSERT_TRUE(slot != nullptr && *slot == right)
          << "sequence " << part.id << ", group " << group << ", position " << position << "\n"
          << to_string(plan);
    }
  }

  void advance_state(const StepPlan& plan, const PlannedSequence& part, int64_t appended) {
    const std::vector<Digest>& digests = digests_[part.id];
    Digest& state = states_.at(part.slot);
    ASSERT_EQ(state, part.context > 0 ? digests[part.context - 1] : 0)
        << "sequence " << part.id << ", slot " << part.slot << "\n"
        << to_string(plan);
    const int64_t kept = part.tokens - part.drafts + std::max<int64_t>(0, appended - 1);
    state = rows_[part.first_row + kept - 1];
  }

  void answer(const StepPlan& plan, size_t i, StepResult& result) {
    const PlannedSequence& part = plan.sequences[i];
    if (fail.erase(part.id) > 0) {
      chosen_.push_back(0);
      return result.add_failed(part.id);
    }
    std::vector<int32_t> tokens, drafts;
    if (part.sample) {
      int64_t row = part.first_row + part.tokens - part.drafts - 1;
      const int64_t last = part.first_row + part.tokens - 1;
      for (;; ++row) {
        tokens.push_back(next_token_(rows_[row], plan.positions[row] + 1));
        chosen_.push_back(tokens.back());
        if (row == last || tokens.back() != plan.token_ids[row + 1]) break;
      }
      Digest digest = digest_after(rows_[row], tokens.back());
      int64_t position = plan.positions[row] + 1;  // of the last token, of which the drafter has a row
      for (int64_t d = 0; d < part.propose; ++d) {
        drafts.push_back(draft(digest, position + d + 1, d));
        digest = digest_after(digest, drafts.back());
        for (size_t g = 0; d > 0 && g < groups_.size(); ++g) {
          EXPECT_NE(find(plan, i, g, position + d - 1), nullptr) << "no block to draft in\n"
                                                                 << to_string(plan);
        }
      }
    }
    result.add(part.id, tokens, stop.erase(part.id) > 0, drafts);
  }

  Digest* find(const StepPlan& plan, size_t sequence, size_t group, int64_t position) {
    const BlockTableView table = plan.table(sequence, group);
    const int64_t block = position / block_size_ - table.first_block;
    if (block < 0 || block >= static_cast<int64_t>(table.ids.size())) return nullptr;
    return &kv_[group].at(table.ids[block] * block_size_ + position % block_size_);
  }

  const std::vector<CacheGroup> groups_;
  const int64_t block_size_;
  const NextToken next_token_;
  std::vector<std::vector<Digest>> kv_;  // per group: [blocks * block_size]
  std::vector<Digest> rows_;             // of the step: the prefix that ends with each row
  std::vector<int32_t> chosen_;          // by logit row, in steps without drafts and prompt logits
  std::vector<Digest> states_;           // per slot: of the tokens it stands after; 0 for none
  std::unordered_map<SequenceId, std::vector<Digest>> digests_;
};

}  // namespace atom
