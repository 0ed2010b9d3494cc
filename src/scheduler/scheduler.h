// Decides which tokens each step computes and which blocks hold them. Policy only: no tensors, no devices.
//
// A step: plan() -> the device runs it -> commit(result). Deterministic: the same calls give the same plans.
// One owning thread, no locks.
//
// Two steps in flight: plan_ahead() gives the step after the one in flight before its tokens are known, if it
// is one decode for each sequence that goes on for all that is known. Its token_ids then say whose they are
// (see StepPlan). That is the step that plan() would give after commit(), but for sequences that turn out to
// have ended: their rows are computed in vain, and commit() passes over them. It is safe because devices run
// steps in order:
//   - what a row in vain writes lies behind everything its sequence has published, in blocks and slots that
//   only
//     steps planned after the sequence's end can be given, which write before they read;
//   - blocks are published, slid out of windows and snapshots taken at commit, for tokens that are known
//   then.
// Whatever could make another step of it (a sequence to admit, a preemption, a snapshot to keep, drafts,
// prompt rows left) makes plan_ahead() answer null, and the next step is planned after commit.
//
// Policy, best sequence first (lower priority number, then earlier arrival):
//   1. Every decode gets its one token. So few sequences run (seats()) that decodes always fit in
//      max_num_batched_tokens and leave a quarter of it to prefills: neither can starve the other. Then, of
//      what prefills leave, decodes get rows for the tokens drafted to follow: drafts cost nobody a token or
//      a block.
//   2. Prefill chunks share the rest: while others wait, a prompt takes at most three quarters of what is
//   left,
//      so a short prompt is never far behind a long one. What nobody takes goes to the best.
//   3. Waiting sequences are admitted while tokens and seats are left, if blocks for all the tokens they have
//      are free and some are to spare for those that run. One that does not fit is passed by, but by at most
//      max_skips others; then nobody overtakes it. One whose next block is being computed by a running
//      sequence waits for that block to be published instead of computing it again; with recurrent state it
//      waits for the snapshot at the end of what they have in common.
//   4. A decode that finds no block preempts the worst running sequence, itself if it is the worst. A waiting
//      sequence may preempt sequences of a worse priority, never of its own. The preempted keeps its tokens,
//      recomputes prompt and output later (less what the prefix index still has), and asks for twice as many
//      spare blocks each time, so that sequences that fit only one at a time run one after the other.
// The best running sequence is never preempted for memory, so it always finishes: no livelock.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "scheduler/block_manager.h"
#include "scheduler/sequence.h"
#include "scheduler/step_plan.h"

namespace atom {

struct SchedulerConfig {
  std::vector<CacheGroup> groups;  // CachePlan::groups
  StatePlan states;                // CachePlan::states
  int64_t block_size = 16;
  int64_t max_num_seqs = 256;
  int64_t max_num_batched_tokens = 2048;
  int64_t max_model_len = 0;
  bool prefix_caching = true;
  std::string cache_salt;  // model identity and cache dtype
  int64_t max_skips = 16;  // admissions past a waiting sequence that does not fit
};

enum class FinishReason : uint8_t { stop, length, cancelled, failed };
std::string_view to_string(FinishReason reason);

struct FinishedSequence {
  SequenceId id = 0;
  FinishReason reason = FinishReason::stop;
  int64_t prompt_tokens = 0;
  std::vector<int32_t> output;
  PrefixReuse reuse;
  int64_t preemptions = 0;
};

struct SchedulerStats {
  int64_t waiting = 0, running = 0;
  int64_t steps = 0;
  int64_t preemptions = 0;
  int64_t prompt_tokens = 0;  // of sequences admitted for the first time
  int64_t hit_tokens = 0;     // of those, reused
  struct Group {
    int64_t blocks = 0, used = 0, cached_free = 0;
  };
  std::vector<Group> groups;
};

class Scheduler {
 public:
  // Throws `invalid` if the numbers make no sense together.
  explicit Scheduler(SchedulerConfig config);

  // Queues a sequence. Refuses at once what could never run: an empty prompt, a prompt with no room for a
  // token below max_model_len, or one that needs more blocks than exist.
  Result<SequenceId> add(SequenceSpec spec);

  // Ends a sequence; its blocks are free when this returns, or after commit if it is in a plan in flight,
  // whose token for it may be left out. False if there is no such sequence (any more): harmless.
  bool cancel(SequenceId id);

  // The next step; empty exactly if idle(). An empty plan is not committed; any other must be, before the
  // next. A plan is valid until it is committed, and the next one made.
  const StepPlan& plan();
  // The step after the one in flight, or null; see above. Null if two are in flight already.
  const StepPlan* plan_ahead();
  // Tokens to draft ahead of a sequence from the next plan on. Ignored if it has ended or does not draft.
  void limit_drafts(SequenceId id, int64_t limit);
  // The sequence will not draft any more: the drafter need not know its rows.
  void stop_drafting(SequenceId id);
  // Of the oldest step in flight.
  void commit(const StepResult& result);

  // Sequences that ended since the last call, in order.
  std::vector<FinishedSequence> take_finished();

  bool idle() const { return sequences_.empty(); }
  const Sequence* find(SequenceId id) const;  // until it ends; invalidated by commit and cancel
  SchedulerStats stats() const;
  const BlockManager& cache() const { return cache_; }

  // Sequences that run at once, <= max_num_seqs.
  int64_t seats() const { return seats_; }
  // Longest sequence: max_model_len, or what the blocks allow.
  int64_t max_total_tokens() const { return max_total_; }

 private:
  enum class Admit : uint8_t { yes, no, later };  // later: its next block is being computed by another

  void grant_decodes();
  void grant_drafts();
  int64_t proposable(Sequence& sequence);
  void grant_prefills();
  void admit_waiting();
  bool look_at_waiting();
  void grant_leftover();
  Admit admit(Sequence& sequence);
  bool make_room(const Sequence& sequence, const BlockManager::Admission& admission);
  bool follows_leader(const Sequence& sequence) const;
  bool find_leader(Sequence& sequence, const PrefixIndex::Match& match);
  void grant(Sequence& sequence, int64_t tokens);
  int64_t fair_chunk(bool others_wait) const;
  BlockManager::Margin margin(const Sequence& sequence, int64_t others) const;
  void preempt(Sequence& sequence);
  void leave_running(Sequence& sequence);
  void build_plan();
  void append_to_plan(Sequence& sequence);
  void append_tables(const Sequence& sequence);
  bool may_plan_ahead() const;
  StepPlan& in_flight(int64_t i) { return plans_[(oldest_ + i) % 2]; }
  StepPlan& new_plan();
  void settle(Sequence& sequence, const PlannedSequence& part, const SequenceResult& result,
              const StepResult& step);
  void finish(Sequence& sequence, FinishReason reason);

  const SchedulerConfig config_;
  const int64_t seats_;
  int64_t max_total_ = 0;
  BlockManager cache_;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::vector<Sequence*> running_;               // best first
  std::set<Sequence*, BetterSequence> waiting_;  // best first
  std::array<StepPlan, 2> plans_;                // their memory is used again
  int64_t oldest_ = 0, flights_ = 0;             // those in flight: plans_[oldest_] and the one after it
  std::vector<FinishedSequence> finished_;
  bool may_admit_ = true;                 // false: who waits was refused, and nothing has changed but blocks
  std::vector<int64_t> free_at_refusal_;  // blocks, per group
  int64_t budget_ = 0;                    // tokens left in the step being planned
  SequenceId next_id_ = 0;
  SchedulerStats stats_;
};

}  // namespace atom
