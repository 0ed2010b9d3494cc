// One sequence: the tokens of a prompt and what has been generated after it, and where its KV is.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "cache/prefix_index.h"
#include "cache/state_pool.h"
#include "scheduler/step_plan.h"

namespace atom {

// What a caller asks for. Several samples of one prompt are several specs: the scheduler lets the first one
// compute the prompt and the others share its blocks.
struct SequenceSpec {
  std::vector<int32_t> prompt;                               // at least one token
  int64_t max_tokens = std::numeric_limits<int64_t>::max();  // output tokens; 0 computes the prompt only
  int priority = 0;                                          // lower numbers go first
  std::string cache_salt;                                    // reuse only among equal salts: adapter, tenant
  bool reuse_prefix = true;                                  // false: computes every token itself
  bool prompt_logits = false;                                // logits of every prompt row; implies no reuse
  int64_t draft_limit = 0;                                   // tokens to draft ahead of it, <= kMaxDrafts
};

// Blocks of a sequence in one group; see BlockTableView.
struct BlockTable {
  int64_t first_block = 0;
  std::vector<BlockId> ids;
  int64_t end_block() const { return first_block + static_cast<int64_t>(ids.size()); }
};

// Owned by the Scheduler, written only by it and its BlockManager. Between steps:
//   waiting  computed == 0, no blocks are held
//   running  computed < total; the table of a paged group covers all tokens before `computed` and more, that
//   of a
//            window group those before `computed` that a later query can see
struct Sequence {
  enum class State : uint8_t { waiting, running };

  SequenceId id = 0;  // also the order of arrival
  int priority = 0;
  State state = State::waiting;
  std::vector<int32_t> tokens;  // prompt, then output
  int64_t prompt_tokens = 0;
  int64_t max_total = 0;  // ends with `length` when it has this many tokens
  bool reuse_prefix = true;
  bool prompt_logits = false;
  std::string salt;

  int64_t computed = 0;            // tokens whose KV is committed
  int64_t granted = 0;             // tokens in the plan being made or in flight, drafts included
  bool drafting = false;           // the drafter computes its rows, so that it can draft
  int64_t draft_limit = 0;         // tokens that shall be drafted ahead of it after a step
  std::vector<int32_t> drafts;     // running: drafted for the places after `tokens`
  int64_t drafts_granted = 0;      // of `granted`: the first of `drafts`, behind the last token
  std::vector<BlockTable> tables;  // per group
  // In the prefix index, opened: waiting, the root of `salt`; running, the node of the last published block.
  NodeId node = kNoNode;  // kNoNode if the engine does not cache prefixes
  int64_t published = 0;  // blocks behind `node`
  SlotId slot = kNoSlot;  // running, if the model has recurrent state: the state after `computed` tokens
  // Ends of blocks, ascending and in blocks, at which a step ends so that a snapshot of the state can be
  // kept.
  std::vector<int64_t> snapshots;

  int64_t logits_given = 0;  // prompt rows whose logits a committed step has delivered
  int64_t preemptions = 0;
  int64_t skips = 0;          // later sequences admitted before this one since it last waited
  int64_t blocks_wanted = 0;  // waiting: free blocks of group 0 below which another look is in vain
  SequenceId leader = -1;     // waiting: a sequence that computes the same prefix right now,
  int64_t leader_blocks = 0;  // and how many of its blocks are worth waiting for
  bool cancelled = false;     // while in flight: ends at commit
  bool admitted_before = false;
  PrefixReuse reuse;  // of the first admission

  int64_t total() const { return static_cast<int64_t>(tokens.size()); }
  int64_t remaining() const { return total() - computed; }    // to compute before the next can be sampled
  bool samples() const { return max_total > prompt_tokens; }  // false: only the prompt is computed
  bool decoding() const { return remaining() == 1; }
  std::span<const int32_t> output() const { return std::span(tokens).subspan(prompt_tokens); }
};

// Better first: lower priority number, then earlier arrival. Preemption takes from the other end.
struct BetterSequence {
  bool operator()(const Sequence* a, const Sequence* b) const {
    return a->priority != b->priority ? a->priority < b->priority : a->id < b->id;
  }
};

}  // namespace atom
