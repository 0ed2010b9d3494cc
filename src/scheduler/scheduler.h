// Decides which tokens each step computes and which blocks hold them. Policy only: no tensors, no devices.
//
// A step: plan() -> the device runs it -> commit(result). One plan is in flight at most. Deterministic: the
// same calls give the same plans. One owning thread, no locks.
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

  // Ends a sequence; its blocks are free when this returns, or after commit if it is in the plan in flight.
  // False if there is no such sequence (any more): harmless.
  bool cancel(SequenceId id);

  // The next step, valid until the next plan(); empty exactly if idle(). An empty plan is not committed; any
  // other must be, before the next.
  const StepPlan& plan();
  // Tokens to draft ahead of a sequence from the next plan on. Ignored if it has ended or does not draft.
  void limit_drafts(SequenceId id, int64_t limit);
  // The sequence will not draft any more: the drafter need not know its rows.
  void stop_drafting(SequenceId id);
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
  void settle(Sequence& sequence, const SequenceResult& result, const StepResult& step);
  void finish(Sequence& sequence, FinishReason reason);

  const SchedulerConfig config_;
  const int64_t seats_;
  int64_t max_total_ = 0;
  BlockManager cache_;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::vector<Sequence*> running_;               // best first
  std::set<Sequence*, BetterSequence> waiting_;  // best first
  StepPlan plan_;                                // its memory is used again each step
  std::vector<Sequence*> in_flight_;             // the plan's sequences, in its order
  std::vector<FinishedSequence> finished_;
  int64_t budget_ = 0;  // tokens left in the step being planned
  SequenceId next_id_ = 0;
  SchedulerStats stats_;
};

}  // namespace atom
