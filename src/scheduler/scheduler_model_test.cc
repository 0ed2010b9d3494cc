// Random traffic on small pools, for many steps, with every invariant checked after each.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "scheduler/fake_device.h"
#include "scheduler/scheduler.h"

namespace atom {
namespace {

struct Traffic {
  const char* name;
  SchedulerConfig config;
  int steps;
  bool drafts = false;
  bool ahead = false;
};

SchedulerConfig config(std::vector<CacheGroup> groups, int64_t block_size, int64_t seqs, int64_t batched,
                       bool caching = true, int64_t skips = 4) {
  SchedulerConfig config;
  config.groups = std::move(groups);
  config.block_size = block_size;
  config.max_num_seqs = seqs;
  config.max_num_batched_tokens = batched;
  config.max_model_len = 60;
  config.prefix_caching = caching;
  config.max_skips = skips;
  return config;
}

SchedulerConfig with_state(SchedulerConfig config, int64_t slot_blocks) {
  config.states = {.slot_blocks = slot_blocks, .slots = config.groups.front().blocks / slot_blocks};
  return config;
}

CacheGroup paged(int64_t blocks) { return {.kind = CacheKind::paged, .blocks = blocks}; }
CacheGroup window(int64_t tokens, int64_t blocks) {
  return {.kind = CacheKind::window, .window = tokens, .blocks = blocks};
}

std::vector<Traffic> all_traffic() {
  return {
      {"paged", config({paged(24)}, 4, 8, 24), 30000},
      {"tiny_pool", config({paged(8)}, 4, 6, 16), 20000},
      {"no_caching", config({paged(20)}, 4, 8, 24, false), 10000},
      {"window", config({paged(24), window(7, 16)}, 4, 6, 16), 20000},
      {"two_windows_scarce", config({paged(30), window(5, 6), window(12, 8)}, 2, 6, 12), 20000},
      {"window_only", config({window(9, 12)}, 4, 5, 16), 10000},
      {"one_token_steps", config({paged(10)}, 4, 4, 1), 10000},
      {"block_of_one", config({paged(64), window(3, 12)}, 1, 5, 9), 10000},
      {"state", with_state(config({paged(40)}, 4, 8, 24), 3), 30000},
      {"state_tiny_pool", with_state(config({paged(14)}, 4, 6, 16), 4), 20000},
      {"state_no_caching", with_state(config({paged(30)}, 4, 8, 24, false), 2), 10000},
      {"state_block_of_one", with_state(config({paged(90)}, 1, 5, 9), 7), 10000},
      {"state_and_window", with_state(config({paged(40), window(7, 16)}, 4, 6, 16), 1), 10000},
      {"drafts", config({paged(24)}, 4, 8, 24), 30000, true},
      {"drafts_tiny_pool", config({paged(8)}, 4, 6, 16), 20000, true},
      {"drafts_window", config({paged(24), window(7, 16)}, 4, 6, 16), 20000, true},
      {"drafts_one_token_steps", config({paged(10)}, 4, 4, 1), 10000, true},
      {"drafts_block_of_one", config({paged(64)}, 1, 5, 9), 10000, true},
      {"drafts_state", with_state(config({paged(40)}, 4, 8, 24), 3), 30000, true},
      {"drafts_state_tiny_pool", with_state(config({paged(14)}, 4, 6, 16), 4), 20000, true},
      {"ahead", config({paged(24)}, 4, 8, 24), 30000, false, true},
      {"ahead_tiny_pool", config({paged(8)}, 4, 6, 16), 20000, false, true},
      {"ahead_window", config({paged(24), window(7, 16)}, 4, 6, 16), 20000, false, true},
      {"ahead_scarce_windows", config({paged(30), window(5, 6), window(12, 8)}, 2, 6, 12), 20000, false,
       true},
      {"ahead_block_of_one", config({paged(64), window(3, 12)}, 1, 5, 9), 10000, false, true},
      {"ahead_state", with_state(config({paged(40)}, 4, 8, 24), 3), 30000, false, true},
      {"ahead_state_block_of_one", with_state(config({paged(90)}, 1, 5, 9), 7), 10000, false, true},
      {"ahead_and_drafts", config({paged(24)}, 4, 8, 24), 20000, true, true},
  };
}

// The generated token; few different ones, so that prefixes of different sequences agree often.
int32_t next_token(Digest prefix, int64_t) { return static_cast<int32_t>(prefix % 3); }

class Model {
 public:
  Model(const Traffic& traffic, uint32_t seed)
      : config_(traffic.config),
        drafts_(traffic.drafts),
        ahead_(traffic.ahead),
        scheduler_(config_),
        device_(config_, next_token),
        random_(seed) {
    device_.draft = [this](Digest prefix, int64_t position, int64_t) {
      return one_in(3) ? 5 : next_token(prefix, position);
    };
  }

  void run(int steps) {
    for (int step = 0; step < steps && !::testing::Test::HasFailure(); ++step) {
      // Bursts that overload the pool, each worked off before the next: under endless overload a sequence of
      // a bad priority may wait for ever, as it should.
      if (burst_left_ == 0 && live_.size() <= 2) burst_left_ = 1 + random_() % 150;
      if (burst_left_ > 0) {
        --burst_left_;
        if (one_in(2)) add();
      }
      if (one_in(40) && !live_.empty()) cancel();
      if (one_in(60) && !live_.empty()) device_.stop.insert(any_live());
      if (one_in(150) && !live_.empty()) device_.fail.insert(any_live());
      advance();
    }
    for (int step = 0; step < 20000 && (flight_ || !scheduler_.idle()) && !::testing::Test::HasFailure();
         ++step)
      advance();
    EXPECT_TRUE(scheduler_.idle());
    EXPECT_TRUE(live_.empty());
    for (const auto& group : scheduler_.stats().groups) EXPECT_EQ(group.used, 0);
  }

  void report(const char* name) const {
    const SchedulerStats stats = scheduler_.stats();
    fmt::print(
        "  {:<22} {} steps, {} ahead, {} sequences, {} of {} prompt tokens reused, {} preemptions, oldest "
        "lived {}\n",
        name, stats.steps, planned_ahead_, added_, stats.hit_tokens, stats.prompt_tokens, stats.preemptions,
        oldest_);
    if (ahead_) {
      EXPECT_GT(planned_ahead_, stats.steps / 50);
    }
  }

 private:
  bool one_in(int n) { return random_() % n == 0; }

  void add() {
    SequenceSpec spec;
    spec.prompt.resize(1 + random_() % (one_in(4) ? 45 : 16));
    // One of three families of prompts, with a deviation somewhere in every second prompt.
    const int32_t family = random_() % 3;
    for (size_t i = 0; i < spec.prompt.size(); ++i) spec.prompt[i] = family;
    if (one_in(2)) spec.prompt[random_() % spec.prompt.size()] = 7;
    spec.max_tokens = random_() % 30;
    spec.priority = one_in(5) ? static_cast<int>(random_() % 3) : 1;
    spec.cache_salt = one_in(6) ? "b" : "";
    spec.reuse_prefix = !one_in(10);
    spec.prompt_logits = one_in(10);
    if (drafts_ && !one_in(4)) spec.draft_limit = 1 + random_() % kMaxDrafts;
    const std::vector<int32_t> prompt = spec.prompt;
    const Result<SequenceId> id = scheduler_.add(std::move(spec));
    if (!id.ok()) return;  // a prompt larger than the pool
    ++added_;
    live_[id.value()] = {prompt, scheduler_.stats().steps};
  }

  SequenceId any_live() { return std::next(live_.begin(), random_() % live_.size())->first; }

  void cancel() { EXPECT_TRUE(scheduler_.cancel(any_live())); }

  // Leaves a step in flight if it could be planned ahead.
  void advance() {
    if (!flight_) {
      const StepPlan& plan = scheduler_.plan();
      check_plan(plan);
      check_blocks();
      if (!plan.empty()) flight_ = device_.run(plan, scheduler_);
    }
    // Half of the cancellations come while a plan is in flight.
    if (one_in(60) && !live_.empty()) scheduler_.cancel(any_live());
    std::optional<StepResult> next;
    if (ahead_ && flight_ && !one_in(8)) {
      if (const StepPlan* plan = scheduler_.plan_ahead()) {
        check_ahead(*plan);
        check_blocks();
        next = device_.run(*plan, scheduler_);
        EXPECT_EQ(scheduler_.plan_ahead(), nullptr) << "three in flight";
        ++planned_ahead_;
      }
      if (one_in(60) && !live_.empty()) scheduler_.cancel(any_live());
    }
    if (flight_) scheduler_.commit(*flight_);
    flight_ = std::move(next);
    settle();
    check_blocks();
  }

  // Nobody but sequences that have a token coming.
  void check_ahead(const StepPlan& plan) {
    EXPECT_FALSE(plan.empty());
    EXPECT_TRUE(plan.state_copies.empty());
    EXPECT_EQ(plan.rows(), static_cast<int64_t>(plan.sequences.size()));
    for (const PlannedSequence& part : plan.sequences) {
      const Sequence& sequence = *scheduler_.find(part.id);
      EXPECT_EQ(part.context, sequence.total());
      EXPECT_LT(part.context + 1, sequence.max_total);
      EXPECT_EQ(part.context + part.tokens, sequence.computed + sequence.granted);
      EXPECT_FALSE(sequence.cancelled);
      EXPECT_LT(plan.token_ids[part.first_row], 0);
    }
  }

  void settle() {
    for (const FinishedSequence& ended : scheduler_.take_finished()) {
      ASSERT_TRUE(live_.contains(ended.id));
      const Live& live = live_[ended.id];
      Digest digest = 0;
      for (int32_t token : live.prompt) digest = digest_after(digest, token);
      for (int32_t token : ended.output) {
        ASSERT_EQ(token, next_token(digest, 0)) << "sequence " << ended.id << " differs from its solo run";
        digest = digest_after(digest, token);
      }
      oldest_ = std::max(oldest_, scheduler_.stats().steps - live.since);
      device_.forget(ended.id);
      device_.stop.erase(ended.id);
      device_.fail.erase(ended.id);
      live_.erase(ended.id);
    }
    // No burst takes so long to work off: a sequence that has not ended by now is starved.
    if (!live_.empty()) {
      ASSERT_LT(scheduler_.stats().steps - live_.begin()->second.since, 4000);
    }
  }

  void check_plan(const StepPlan& plan) {
    EXPECT_EQ(plan.empty(), scheduler_.idle());
    EXPECT_LE(plan.rows(), config_.max_num_batched_tokens);
    EXPECT_LE(static_cast<int64_t>(plan.sequences.size()), scheduler_.seats());
    EXPECT_LE(scheduler_.stats().running, scheduler_.seats());
    int64_t row = 0;
    bool prefills = false;
    for (const PlannedSequence& part : plan.sequences) {
      EXPECT_EQ(part.first_row, row);
      EXPECT_GE(part.tokens, 1);
      EXPECT_LE(part.logit_rows, part.tokens);
      row += part.tokens;
      const bool decode = scheduler_.find(part.id)->decoding();
      EXPECT_FALSE(decode && prefills) << "a decode after a prefill";
      prefills = !decode;
    }
    EXPECT_EQ(plan.rows(), row);
    // Every decode is served in every step.
    for (const auto& [id, live] : live_) {
      const Sequence* sequence = scheduler_.find(id);  // null if just cancelled
      if (sequence != nullptr && sequence->state == Sequence::State::running && sequence->decoding()) {
        EXPECT_EQ(sequence->granted, 1 + sequence->drafts_granted);
        EXPECT_LE(sequence->total() + sequence->drafts_granted, sequence->max_total);
      }
    }
  }

  void check_blocks() {
    for (int g = 0; g < scheduler_.cache().groups(); ++g) check_group(g);
  }

  void check_group(int g) {
    const BlockPool& pool = scheduler_.cache().pool(g);
    const CacheGroup& group = config_.groups[g];
    struct Holder {
      const Sequence* sequence;
      int64_t block;  // index in the sequence
    };
    std::vector<std::vector<Holder>> holders(pool.size());
    for (const auto& [id, live] : live_) {
      const Sequence* sequence = scheduler_.find(id);
      if (sequence == nullptr) continue;  // just cancelled
      if (sequence->state == Sequence::State::waiting) {
        EXPECT_TRUE(sequence->tables.empty() || sequence->tables[g].ids.empty());
        continue;
      }
      const BlockTable& table = sequence->tables[g];
      for (size_t i = 0; i < table.ids.size(); ++i) {
        holders[table.ids[i]].push_back({sequence, table.first_block + static_cast<int64_t>(i)});
      }
      if (const StatePool* states = scheduler_.cache().states(); states != nullptr && g == 0) {
        int64_t paying = 0;  // no block of a sequence
        for (BlockId block : states->payment(sequence->slot)) holders[block].push_back({sequence, --paying});
        EXPECT_EQ(-paying, states->slot_blocks());
        EXPECT_GE(scheduler_.cache().next_stop(*sequence), sequence->computed + sequence->granted);
      }
      EXPECT_EQ(table.first_block, first_needed_block(sequence->computed, group.window, config_.block_size));
      EXPECT_GE(table.end_block() * config_.block_size, sequence->computed + sequence->granted);
      if (group.kind == CacheKind::window) {
        EXPECT_LE(static_cast<int64_t>(table.ids.size()),
                  most_blocks_held(group.window, config_.block_size, sequence->total() + 2 * kMaxDrafts,
                                   config_.max_num_batched_tokens + ahead_));
      }
    }
    int64_t used = 0;
    for (BlockId id = 0; id < pool.size(); ++id) {
      ASSERT_EQ(pool.ref_count(id), static_cast<int64_t>(holders[id].size()))
          << "block " << id << " of group " << g;
      used += !holders[id].empty();
      for (const Holder& holder : holders[id]) check_sharing(holders[id].front(), holder);
    }
    EXPECT_EQ(pool.used_blocks(), used);
    EXPECT_EQ(pool.free_blocks() + used, pool.size());
  }

  // A block in two tables is full, committed, and behind the same tokens and salt.
  template <class Holder>
  void check_sharing(const Holder& a, const Holder& b) {
    if (a.sequence == b.sequence) return;
    ASSERT_EQ(a.block, b.block);
    const int64_t end = (a.block + 1) * config_.block_size;
    ASSERT_GE(a.sequence->computed, end);
    ASSERT_GE(b.sequence->computed, end);
    ASSERT_EQ(a.sequence->salt, b.sequence->salt);
    ASSERT_TRUE(
        std::equal(a.sequence->tokens.begin(), a.sequence->tokens.begin() + end, b.sequence->tokens.begin()));
  }

  struct Live {
    std::vector<int32_t> prompt;
    int64_t since = 0;
  };

  const SchedulerConfig config_;
  const bool drafts_, ahead_;
  Scheduler scheduler_;
  FakeDevice device_;
  std::mt19937 random_;
  std::map<SequenceId, Live> live_;
  std::optional<StepResult> flight_;  // of a step that is not committed
  int64_t added_ = 0, oldest_ = 0, planned_ahead_ = 0;
  int burst_left_ = 0;
};

TEST(SchedulerModel, KeepsEveryInvariantUnderRandomTraffic) {
  for (const Traffic& traffic : all_traffic()) {
    SCOPED_TRACE(traffic.name);
    Model model(traffic, 1);
    model.run(traffic.steps);
    model.report(traffic.name);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace atom
