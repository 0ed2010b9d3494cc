// The scheduling policy: grants tokens, admits, preempts, commits. See scheduler.h for the rules.
#include "scheduler/scheduler.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace atom {
namespace {

constexpr int64_t kLooks = 32;         // waiting sequences examined per step
constexpr int64_t kMaxDoublings = 24;  // of spare blocks: beyond any pool

// Tokens of a step that decodes leave to prefills.
int64_t prefill_share(int64_t max_num_batched_tokens) {
  return std::max<int64_t>(1, max_num_batched_tokens / 4);
}

SchedulerConfig checked(SchedulerConfig config) {
  const auto at_least_one = [](const char* name, int64_t value) {
    if (value < 1) throw invalid("{} is {}; it must be at least 1", name, value);
  };
  if (config.groups.empty()) throw invalid("the model has no cache groups; a scheduler needs at least one");
  at_least_one("the cache block size", config.block_size);
  at_least_one("max-num-seqs", config.max_num_seqs);
  at_least_one("max-num-batched-tokens", config.max_num_batched_tokens);
  at_least_one("max-model-len", config.max_model_len);
  for (const CacheGroup& group : config.groups) {
    const bool windowed = group.kind == CacheKind::window;
    const int64_t least = windowed
                              ? most_blocks_held(group.window, config.block_size, config.max_model_len, 1)
                              : 1 + config.states.slot_blocks;
    if (group.blocks < least || windowed != (group.window > 0)) {
      throw invalid("a cache group with a window of {} tokens has {} blocks; one sequence needs at least {}",
                    group.window, group.blocks, least);
    }
  }
  if (config.states.slot_blocks > 0 && config.groups.front().kind != CacheKind::paged) {
    throw invalid("recurrent state needs a paged cache group, whose blocks pay for it");
  }
  return config;
}

// Whether the sequence, which is given a token by the step in flight, will need another after it, for all
// that is known.
bool goes_on(const Sequence& sequence) {
  return !sequence.cancelled && sequence.total() + 1 < sequence.max_total;
}

}  // namespace

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::cancelled:
      return "cancelled";
    case FinishReason::failed:
      return "failed";
  }
  return "?";
}

Scheduler::Scheduler(SchedulerConfig config)
    : config_(checked(std::move(config))),
      seats_(std::min(config_.max_num_seqs,
                      config_.max_num_batched_tokens - prefill_share(config_.max_num_batched_tokens) + 1)),
      max_total_(config_.max_model_len),
      cache_(config_.block_size, config_.groups, config_.prefix_caching, config_.states) {
  for (StepPlan& plan : plans_) {
    plan.block_size = config_.block_size;
    plan.groups = cache_.groups();
  }
  free_at_refusal_.resize(static_cast<size_t>(cache_.groups()));
  for (const CacheGroup& group : config_.groups) {
    if (group.kind != CacheKind::paged) continue;
    const int64_t blocks = group.blocks - config_.states.slot_blocks;
    max_total_ = std::min(max_total_, blocks * config_.block_size + 1);  // the last token needs no KV
  }
}

Result<SequenceId> Scheduler::add(SequenceSpec spec) {
  const int64_t prompt = static_cast<int64_t>(spec.prompt.size());
  if (prompt == 0) return invalid("the prompt is empty");
  CHECK(spec.draft_limit >= 0 && spec.draft_limit <= kMaxDrafts, "{} drafts", spec.draft_limit);
  if (spec.max_tokens < 0) return invalid("max_tokens is {}; it must not be negative", spec.max_tokens);
  const int64_t at_least = prompt + (spec.max_tokens > 0);
  if (at_least > config_.max_model_len) {
    return invalid("the prompt has {} tokens; with max-model-len {} it may have {} at most", prompt,
                   config_.max_model_len, config_.max_model_len - (at_least - prompt));
  }
  for (const CacheGroup& group : config_.groups) {
    const int64_t need = most_blocks_held(group.window, config_.block_size, prompt, 1);
    const int64_t blocks = group.blocks - (group.kind == CacheKind::paged ? config_.states.slot_blocks : 0);
    if (need > blocks) {
      return invalid(
          "the prompt has {} tokens, which take {} cache blocks of {} tokens, but there are only {}; the "
          "longest "
          "prompt that fits has {} tokens",
          prompt, need, config_.block_size, blocks, blocks * config_.block_size);
    }
  }

  auto sequence = std::make_unique<Sequence>();
  sequence->id = next_id_++;
  sequence->priority = spec.priority;
  sequence->tokens = std::move(spec.prompt);
  sequence->prompt_tokens = prompt;
  sequence->max_total =
      std::max(prompt, std::min(max_total_, prompt + std::min(spec.max_tokens, max_total_)));
  sequence->reuse_prefix = spec.reuse_prefix;
  sequence->prompt_logits = spec.prompt_logits;
  sequence->drafting = spec.draft_limit > 0;
  sequence->draft_limit = spec.draft_limit;
  // The length keeps ("ab", "c") apart from ("a", "bc").
  sequence->salt = fmt::format("{}:{}{}", config_.cache_salt.size(), config_.cache_salt, spec.cache_salt);
  cache_.open(*sequence);
  waiting_.insert(sequence.get());
  may_admit_ = true;
  const SequenceId id = sequence->id;
  sequences_.emplace(id, std::move(sequence));
  return id;
}

bool Scheduler::cancel(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second->cancelled) return false;
  Sequence& sequence = *found->second;
  if (sequence.granted > 0) {
    sequence.cancelled = true;  // the device is writing to its blocks: commit ends it
  } else {
    finish(sequence, FinishReason::cancelled);
  }
  return true;
}

const StepPlan& Scheduler::plan() {
  CHECK(flights_ == 0, "step {} is not committed", stats_.steps);
  budget_ = config_.max_num_batched_tokens;
  grant_decodes();
  grant_drafts();
  grant_prefills();
  admit_waiting();
  grant_leftover();
  build_plan();
  return in_flight(0);
}

// Whether every sequence that runs is in the step in flight and will have its next token from it, and nobody
// else could take part in the step after it.
bool Scheduler::may_plan_ahead() const {
  if (flights_ != 1) return false;
  const StepPlan& plan = plans_[oldest_];
  if (plan.drafting || plan.sequences.size() != running_.size()) return false;
  int64_t going_on = 0;
  for (const PlannedSequence& part : plan.sequences) {
    const Sequence& sequence = *sequences_.at(part.id);
    if (!part.sample || part.logit_rows != 1 || part.propose > 0) return false;
    // A snapshot is copied when the next step begins: that must not be under way by then.
    if (cache_.next_stop(sequence) == sequence.computed + part.tokens) return false;
    going_on += goes_on(sequence);
  }
  if (going_on == 0) return false;
  if (waiting_.empty()) return true;
  if (may_admit_ || going_on < static_cast<int64_t>(running_.size())) return false;
  for (int g = 0; g < cache_.groups(); ++g) {
    if (cache_.pool(g).free_blocks() > free_at_refusal_[g]) return false;
  }
  return true;
}

const StepPlan* Scheduler::plan_ahead() {
  if (!may_plan_ahead()) return nullptr;
  const StepPlan& before = in_flight(0);
  for (const PlannedSequence& part : before.sequences) {
    Sequence& sequence = *sequences_.at(part.id);
    const int64_t tokens = part.tokens + 1;
    if (goes_on(sequence) && cache_.grow(sequence, tokens) < tokens) return nullptr;  // plan() will preempt
  }
  StepPlan& plan = new_plan();
  for (size_t i = 0; i < before.sequences.size(); ++i) {
    Sequence& sequence = *sequences_.at(before.sequences[i].id);
    if (!goes_on(sequence)) continue;
    ++sequence.granted;
    plan.sequences.push_back({.id = sequence.id,
                              .first_row = plan.rows(),
                              .tokens = 1,
                              .context = sequence.total(),
                              .sample = true,
                              .logit_rows = 1,
                              .slot = sequence.slot});
    plan.token_ids.push_back(chosen_by_row(static_cast<int64_t>(i)));
    plan.positions.push_back(static_cast<int32_t>(sequence.total()));
    append_tables(sequence);
  }
  return &plan;
}

// Best first, so that a victim, which is the worst, has not been granted anything yet.
void Scheduler::grant_decodes() {
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence& sequence = *running_[i];
    if (!sequence.decoding()) continue;
    grant(sequence, 1);
    while (sequence.granted == 0 && sequence.state == Sequence::State::running) {
      preempt(*running_.back());
      if (sequence.state == Sequence::State::running) grant(sequence, 1);
    }
  }
}

// Drafts are rows that may be in vain, so they take only what nobody else has a use for.
void Scheduler::grant_drafts() {
  const bool prefills =
      !waiting_.empty() || !std::ranges::all_of(running_, [](const Sequence* s) { return s->decoding(); });
  const int64_t reserve = prefills ? prefill_share(config_.max_num_batched_tokens) : 0;
  for (Sequence* sequence : running_) {
    if (sequence->granted == 0 || !sequence->samples()) continue;
    const int64_t room = std::min(sequence->max_total - sequence->total() - 1,
                                  cache_.next_stop(*sequence) - sequence->computed - sequence->granted);
    const int64_t rows = std::min({static_cast<int64_t>(sequence->drafts.size()), room, budget_ - reserve});
    if (rows <= 0) continue;
    const int64_t granted = cache_.grow(*sequence, sequence->granted + rows, running_.size());
    sequence->drafts_granted = std::max<int64_t>(0, granted - sequence->granted);
    sequence->granted += sequence->drafts_granted;
    budget_ -= sequence->drafts_granted;
  }
}

// How many tokens may be drafted behind those that the step appends: the drafter needs blocks for all but the
// last of them, also if the step appends as many as it can.
int64_t Scheduler::proposable(Sequence& sequence) {
  const int64_t wanted = std::min(sequence.draft_limit, sequence.max_total - sequence.total() - 2);
  if (wanted <= 0) return 0;
  const int64_t reach = cache_.grow(sequence, sequence.granted + wanted - 1, running_.size());
  return std::min(wanted, reach - sequence.granted + 1);
}

void Scheduler::limit_drafts(SequenceId id, int64_t limit) {
  CHECK(limit >= 0 && limit <= kMaxDrafts, "{} drafts", limit);
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || !found->second->drafting) return;
  found->second->draft_limit = limit;
}

void Scheduler::stop_drafting(SequenceId id) {
  limit_drafts(id, 0);
  if (const auto found = sequences_.find(id); found != sequences_.end()) found->second->drafting = false;
}

void Scheduler::grant_prefills() {
  for (size_t i = 0; i < running_.size() && budget_ > 0; ++i) {
    Sequence& sequence = *running_[i];
    if (sequence.decoding()) continue;
    const bool others_wait = i + 1 < running_.size() || !waiting_.empty();
    grant(sequence, fair_chunk(others_wait));
    // Only window groups can run out here. Whoever has a grant goes on and will give blocks back; if nobody
    // worse than this one has, it must not wait for them.
    while (sequence.granted == 0 && running_.back() != &sequence && running_.back()->granted == 0) {
      preempt(*running_.back());
      grant(sequence, fair_chunk(others_wait));
    }
  }
}

void Scheduler::admit_waiting() {
  may_admit_ = look_at_waiting();
  for (int g = 0; g < cache_.groups(); ++g) free_at_refusal_[g] = cache_.pool(g).free_blocks();
}

// Returns whether another look may admit somebody though nothing has become free.
bool Scheduler::look_at_waiting() {
  std::vector<Sequence*> passed;
  int64_t looks = kLooks;
  bool later = false;
  for (auto next = waiting_.begin(); next != waiting_.end() && budget_ > 0 && looks > 0; --looks) {
    Sequence& sequence = **next;
    ++next;  // admission removes the sequence, and may insert worse ones
    const bool seated = static_cast<int64_t>(running_.size()) < seats_;
    if (!seated && running_.back()->priority <= sequence.priority) return later;
    switch (admit(sequence)) {
      case Admit::yes:
        for (Sequence* other : passed) ++other->skips;
        break;
      case Admit::no:
        passed.push_back(&sequence);
        break;
      case Admit::later:
        later = true;
        break;
    }
    if (std::ranges::any_of(passed,
                            [&](const Sequence* other) { return other->skips >= config_.max_skips; })) {
      return later;
    }
  }
  return later || budget_ == 0 || looks == 0;
}

void Scheduler::grant_leftover() {
  for (size_t i = 0; i < running_.size() && budget_ > 0; ++i) grant(*running_[i], budget_);
}

Scheduler::Admit Scheduler::admit(Sequence& sequence) {
  if (follows_leader(sequence)) return Admit::later;
  const int64_t others = static_cast<int64_t>(running_.size());
  const BlockManager::Margin margin = this->margin(sequence, others);
  const bool may_preempt = others > 0 && running_.back()->priority > sequence.priority;
  if (!may_preempt && others > 0 && cache_.spendable(0, margin) < sequence.blocks_wanted) return Admit::no;

  BlockManager::Admission admission = cache_.consider(sequence);
  if (find_leader(sequence, admission.match)) return Admit::later;
  if (others >= seats_ || !cache_.fits(admission, margin)) {
    sequence.blocks_wanted = admission.need[0];
    if (!may_preempt || !make_room(sequence, admission)) return Admit::no;
    admission = cache_.consider(sequence);
  }

  cache_.admit(sequence, admission);
  if (!sequence.admitted_before) {
    sequence.admitted_before = true;
    sequence.reuse = {sequence.computed, admission.match.stop};
    stats_.prompt_tokens += sequence.prompt_tokens;
    stats_.hit_tokens += sequence.computed;
  }
  sequence.state = Sequence::State::running;
  sequence.skips = sequence.blocks_wanted = 0;
  waiting_.erase(&sequence);
  running_.insert(std::ranges::upper_bound(running_, &sequence, BetterSequence()), &sequence);
  grant(sequence, fair_chunk(!waiting_.empty()));
  return Admit::yes;
}

// Preempts sequences of a worse priority, worst first, until `sequence` has its seat and blocks; none at all
// if it could not have them.
bool Scheduler::make_room(const Sequence& sequence, const BlockManager::Admission& admission) {
  const auto first_victim = std::ranges::upper_bound(running_, sequence.priority, {}, &Sequence::priority);
  const std::vector<Sequence*> victims(first_victim, running_.end());
  if (!cache_.fits(admission, margin(sequence, first_victim - running_.begin()), victims)) return false;
  for (auto victim = victims.rbegin(); victim != victims.rend(); ++victim) {
    preempt(**victim);
    if (cache_.fits(cache_.consider(sequence), margin(sequence, running_.size()))) break;
  }
  return true;
}

// True while the leader goes on computing blocks that both have.
bool Scheduler::follows_leader(const Sequence& sequence) const {
  const Sequence* leader = find(sequence.leader);
  return leader != nullptr && leader->state == Sequence::State::running &&
         leader->published < sequence.leader_blocks;
}

// A leader is a running sequence, no worse in priority (so it is served, and the wait ends), about to publish
// the very block that `sequence` would compute next. With recurrent state the wait is worth it only for a
// snapshot at the end of what they have in common.
bool Scheduler::find_leader(Sequence& sequence, const PrefixIndex::Match& match) {
  if (match.stop == ReuseStop::disabled) return false;
  const int64_t block_size = config_.block_size, next = match.blocks * block_size;
  for (Sequence* other : running_) {
    if (other->priority > sequence.priority) break;
    if (other->node != match.node || other->published != match.blocks) continue;
    const int64_t most =
        std::min(sequence.total() - 1, other->total());  // the last token is computed in any case
    const auto begin = sequence.tokens.begin();
    const auto differs = std::mismatch(begin + next, begin + most, other->tokens.begin() + next).first;
    const int64_t common_blocks = (differs - begin) / block_size;
    if (common_blocks <= match.blocks) continue;
    if (cache_.states() != nullptr && !cache_.request_snapshot(*other, common_blocks)) continue;
    sequence.leader = other->id;
    sequence.leader_blocks = common_blocks;
    return true;
  }
  return false;
}

// Adds up to `tokens` to a running sequence's part of the step, as far as it has them, the budget and blocks
// allow.
void Scheduler::grant(Sequence& sequence, int64_t tokens) {
  const int64_t stop = cache_.next_stop(sequence) - sequence.computed;
  const int64_t more = std::min({tokens, std::min(sequence.remaining(), stop) - sequence.granted, budget_});
  if (more <= 0) return;
  const int64_t granted = cache_.grow(sequence, sequence.granted + more);
  budget_ -= granted - sequence.granted;
  sequence.granted = granted;
}

int64_t Scheduler::fair_chunk(bool others_wait) const {
  return others_wait ? budget_ - budget_ / 4 : budget_;
}

// What must stay free when `sequence` is admitted beside `others`, so that it is not preempted again at once:
// paged tables may each take a block soon; windows breathe by a block, which a sequence learns from being
// preempted.
BlockManager::Margin Scheduler::margin(const Sequence& sequence, int64_t others) const {
  if (others == 0) return {};
  return {.anywhere = (int64_t{1} << std::min(sequence.preemptions, kMaxDoublings)) - 1, .paged = others};
}

void Scheduler::preempt(Sequence& sequence) {
  budget_ += std::exchange(sequence.granted, 0);
  sequence.drafts_granted = 0;
  sequence.drafts.clear();
  leave_running(sequence);
  cache_.release(sequence);
  ++sequence.preemptions;
  ++stats_.preemptions;
  sequence.state = Sequence::State::waiting;
  waiting_.insert(&sequence);
  may_admit_ = true;
}

void Scheduler::leave_running(Sequence& sequence) {
  running_.erase(std::ranges::lower_bound(running_, &sequence, BetterSequence()));
}

// The next place in flight, with an empty plan.
StepPlan& Scheduler::new_plan() {
  StepPlan& plan = in_flight(flights_++);
  plan.step = ++stats_.steps;
  plan.drafting = false;
  plan.token_ids.clear();
  plan.positions.clear();
  plan.sequences.clear();
  plan.tables.clear();
  plan.blocks.clear();
  plan.state_copies.clear();
  return plan;
}

void Scheduler::build_plan() {
  StepPlan& plan = new_plan();
  const auto append = [&](bool decodes) {
    for (Sequence* sequence : running_) {
      if (sequence->granted > 0 && sequence->decoding() == decodes) append_to_plan(*sequence);
    }
  };
  append(true);
  append(false);
  CHECK(plan.empty() == idle(), "{} sequences cannot go on", sequences_.size());
  if (!plan.empty()) {
    plan.state_copies = cache_.take_state_copies();
    return;
  }
  plan.step = 0;
  --stats_.steps;
  --flights_;
}

void Scheduler::append_to_plan(Sequence& sequence) {
  StepPlan& plan = in_flight(0);
  const int64_t begin = sequence.computed, end = begin + sequence.granted;
  PlannedSequence part{.id = sequence.id,
                       .first_row = plan.rows(),
                       .tokens = sequence.granted,
                       .drafts = sequence.drafts_granted,
                       .context = begin,
                       .sample = end - sequence.drafts_granted == sequence.total() && sequence.samples(),
                       .slot = sequence.slot};
  part.logit_rows = part.sample ? 1 + part.drafts : 0;
  if (part.sample) part.propose = proposable(sequence);
  plan.drafting |= sequence.drafting;
  if (sequence.prompt_logits && sequence.logits_given < sequence.prompt_tokens) {
    part.logit_rows = std::max(part.logit_rows, end - std::max(begin, sequence.logits_given));
  }
  plan.sequences.push_back(part);
  for (int64_t position = begin; position < end; ++position) {
    const int64_t draft = position - sequence.total();
    plan.token_ids.push_back(draft < 0 ? sequence.tokens[position] : sequence.drafts[draft]);
    plan.positions.push_back(static_cast<int32_t>(position));
  }
  append_tables(sequence);
}

// To the plan that was made last.
void Scheduler::append_tables(const Sequence& sequence) {
  StepPlan& plan = in_flight(flights_ - 1);
  for (const BlockTable& table : sequence.tables) {
    plan.tables.push_back({.first_block = table.first_block,
                           .begin = static_cast<int64_t>(plan.blocks.size()),
                           .count = static_cast<int64_t>(table.ids.size())});
    plan.blocks.insert(plan.blocks.end(), table.ids.begin(), table.ids.end());
  }
}

void Scheduler::commit(const StepResult& result) {
  CHECK(flights_ > 0, "a result of step {}, and nothing is in flight", result.step);
  const StepPlan& plan = in_flight(0);
  CHECK(result.step == plan.step && result.sequences.size() == plan.sequences.size(),
        "a result of step {} for {} sequences; in flight is step {} with {}", result.step,
        result.sequences.size(), plan.step, plan.sequences.size());
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    const PlannedSequence& part = plan.sequences[i];
    CHECK(result.sequences[i].id == part.id, "result {} is for sequence {}, planned was {}", i,
          result.sequences[i].id, part.id);
    const auto found = sequences_.find(part.id);
    if (found != sequences_.end()) settle(*found->second, part, result.sequences[i], result);
  }
  oldest_ = (oldest_ + 1) % 2;
  --flights_;
}

void Scheduler::settle(Sequence& sequence, const PlannedSequence& part, const SequenceResult& result,
                       const StepResult& step) {
  sequence.granted -= part.tokens;
  sequence.drafts_granted = 0;
  if (result.failed) {
    cache_.distrust(sequence);
    return finish(sequence, FinishReason::failed);
  }
  const bool left_out = sequence.cancelled && result.tokens == 0;
  CHECK(
      part.sample ? left_out || (result.tokens >= 1 && result.tokens <= 1 + part.drafts) : result.tokens == 0,
      "sequence {} got {} tokens", sequence.id, result.tokens);
  const auto first = step.token_ids.begin() + result.first_token, behind = first + result.tokens;
  sequence.tokens.insert(sequence.tokens.end(), first, behind);
  sequence.drafts.assign(behind, behind + result.drafts);
  // The rows of drafts that were right are as good as any; those behind are written again.
  cache_.advance(sequence, part.tokens - part.drafts + std::max<int64_t>(0, result.tokens - 1));
  if (sequence.prompt_logits) sequence.logits_given = std::min(sequence.computed, sequence.prompt_tokens);

  if (sequence.cancelled) {
    finish(sequence, FinishReason::cancelled);
  } else if (result.finished) {
    finish(sequence, FinishReason::stop);
  } else if (sequence.total() == sequence.max_total && (part.sample || sequence.remaining() == 0)) {
    finish(sequence, FinishReason::length);
  }
}

void Scheduler::finish(Sequence& sequence, FinishReason reason) {
  if (sequence.state == Sequence::State::running) {
    leave_running(sequence);
    cache_.release(sequence);
  } else {
    waiting_.erase(&sequence);
  }
  may_admit_ = true;
  cache_.close(sequence);
  finished_.push_back({.id = sequence.id,
                       .reason = reason,
                       .prompt_tokens = sequence.prompt_tokens,
                       .output = {sequence.output().begin(), sequence.output().end()},
                       .reuse = sequence.reuse,
                       .preemptions = sequence.preemptions});
  sequences_.erase(sequence.id);
}

std::vector<FinishedSequence> Scheduler::take_finished() { return std::exchange(finished_, {}); }

const Sequence* Scheduler::find(SequenceId id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : found->second.get();
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = stats_;
  stats.waiting = static_cast<int64_t>(waiting_.size());
  stats.running = static_cast<int64_t>(running_.size());
  for (int g = 0; g < cache_.groups(); ++g) {
    const BlockPool& pool = cache_.pool(g);
    stats.groups.push_back({pool.size(), pool.used_blocks(), pool.cached_free_blocks()});
  }
  return stats;
}

}  // namespace atom
