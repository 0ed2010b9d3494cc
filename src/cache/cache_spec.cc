// Grouping of cache specs and the division of one byte budget into blocks.
#include "cache/cache_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"
#include "base/search.h"
#include "base/text_util.h"

namespace atom {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxBlocks = int64_t{1}
                               << 24;  // of one group: bounds the host memory that keeps track of them

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

int64_t saturating_mul(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? kMax : product;
}
int64_t saturating_add(int64_t a, int64_t b) { return a > kMax - b ? kMax : a + b; }

void check_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    throw invalid("{} is {}; it must be from {} to {}", name, value, low, high);
  }
}

void check(std::span<const CacheSpec> specs, const CacheLimits& limits) {
  check_range("the cache block size", limits.block_size, 1, 1 << 16);
  check_range("max-num-seqs", limits.max_num_seqs, 1, 1 << 20);
  check_range("max-model-len", limits.max_model_len, 1,
              std::min<int64_t>(std::numeric_limits<int32_t>::max(), kMaxBlocks * limits.block_size));
  check_range("max-num-batched-tokens", limits.max_num_batched_tokens, 1,
              std::numeric_limits<int32_t>::max());
  check_range("the cache budget in bytes", limits.budget_bytes, 0, kMax);
  if (specs.empty()) throw invalid("no layer asks for cache");
  for (size_t i = 0; i < specs.size(); ++i) {
    const CacheSpec& spec = specs[i];
    if (spec.bytes_per_token < 0 || spec.bytes_per_token > int64_t{1} << 32) {
      throw invalid("cache {} asks for {} bytes per token", i, spec.bytes_per_token);
    }
    if ((spec.kind == CacheKind::window) != (spec.window > 0)) {
      throw invalid("cache {} asks for a window of {} tokens; a window has at least one, other kinds none", i,
                    spec.window);
    }
    if (spec.state_bytes < 0 || spec.state_bytes > int64_t{1} << 40 ||
        (spec.kind != CacheKind::state && spec.state_bytes > 0) ||
        (spec.kind == CacheKind::state && spec.bytes_per_token > 0)) {
      throw invalid("cache {} asks for {} bytes of state and {} bytes per token", i, spec.state_bytes,
                    spec.bytes_per_token);
    }
  }
}

std::vector<CacheGroup> group_specs(std::span<const CacheSpec> specs, int64_t max_model_len) {
  std::map<int64_t, CacheGroup> by_window;  // 0, the paged group, sorts first
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].kind == CacheKind::state) continue;
    const int64_t window = specs[i].window >= max_model_len ? 0 : specs[i].window;
    CacheGroup& group = by_window[window];
    group.kind = window > 0 ? CacheKind::window : CacheKind::paged;
    group.window = window;
    group.bytes_per_token += specs[i].bytes_per_token;
    group.specs.push_back(static_cast<int>(i));
  }
  std::vector<CacheGroup> groups;
  for (auto& [window, group] : by_window) groups.push_back(std::move(group));
  return groups;
}

// Blocks of the paged group that pay for the state of one sequence.
int64_t slot_blocks(std::span<const CacheSpec> specs, const std::vector<CacheGroup>& groups,
                    const CacheLimits& limits) {
  int64_t bytes = 0;
  for (const CacheSpec& spec : specs) bytes = saturating_add(bytes, spec.state_bytes);
  if (bytes == 0) return 0;
  if (groups.empty() || groups.front().kind != CacheKind::paged || groups.front().bytes_per_token == 0) {
    throw invalid("recurrent state needs a full-attention layer beside it, whose blocks pay for it");
  }
  return ceil_div(bytes, limits.block_size * groups.front().bytes_per_token);
}

// Everything follows from two numbers: the blocks of the paged group (or, without one, of every window
// group), and how many sequences window groups are made for.
class Division {
 public:
  Division(std::span<const CacheSpec> specs, const std::vector<CacheGroup>& groups, const CacheLimits& limits)
      : groups_(groups), limits_(limits), slot_blocks_(atom::slot_blocks(specs, groups, limits)) {}

  int64_t slot_blocks() const { return slot_blocks_; }

  bool has_paged() const { return groups_.front().kind == CacheKind::paged; }

  int64_t blocks_of(const CacheGroup& group, int64_t blocks, int64_t seqs) const {
    return group.kind == CacheKind::paged || !has_paged() ? blocks : std::min(blocks, most_used(group, seqs));
  }

  int64_t bytes(int64_t blocks, int64_t seqs) const {
    int64_t sum = 0;
    for (const CacheGroup& group : groups_) {
      const int64_t block_bytes = limits_.block_size * group.bytes_per_token;
      sum = saturating_add(sum, saturating_mul(blocks_of(group, blocks, seqs), block_bytes));
    }
    return sum;
  }

  // Blocks that one sequence of max_model_len tokens cannot do without.
  int64_t least() const {
    int64_t blocks = 0;
    for (const CacheGroup& group : groups_) {
      const int64_t held = most_blocks_held(group.window, limits_.block_size, limits_.max_model_len, 1);
      blocks = std::max(blocks, held + (group.kind == CacheKind::paged ? slot_blocks_ : 0));
    }
    return blocks;
  }

  // Blocks that hold max_num_seqs sequences of max_model_len tokens.
  int64_t full_load() const {
    int64_t blocks = 0;
    for (const CacheGroup& group : groups_) blocks = std::max(blocks, most_used(group, limits_.max_num_seqs));
    return blocks;
  }

  int64_t most_blocks(int64_t seqs) const {
    return largest_that_fits(kMaxBlocks,
                             [&](int64_t blocks) { return bytes(blocks, seqs) <= limits_.budget_bytes; });
  }

  // Sequences whose windows fit beside the paged blocks of one long sequence; at least one.
  int64_t most_seqs() const {
    return std::max<int64_t>(1, largest_that_fits(limits_.max_num_seqs, [&](int64_t seqs) {
                               return bytes(least(), seqs) <= limits_.budget_bytes;
                             }));
  }

 private:
  // Between steps a sequence holds its window; within one, the step's tokens come on top, shared by all
  // sequences.
  int64_t most_used(const CacheGroup& group, int64_t seqs) const {
    const int64_t whole = seqs * ceil_div(limits_.max_model_len, limits_.block_size);
    if (group.kind == CacheKind::paged) return saturating_add(whole, saturating_mul(seqs, slot_blocks_));
    const int64_t held = most_blocks_held(group.window, limits_.block_size, limits_.max_model_len, 1);
    return std::min(whole, seqs * held + ceil_div(limits_.max_num_batched_tokens, limits_.block_size));
  }

  const std::vector<CacheGroup>& groups_;
  const CacheLimits& limits_;
  const int64_t slot_blocks_;
};

}  // namespace

int64_t most_blocks_held(int64_t window, int64_t block_size, int64_t tokens, int64_t chunk) {
  const int64_t whole = ceil_div(tokens, block_size);
  if (window == 0) return whole;
  // window - 1 + chunk tokens in a row touch one block more than they fill when they start at a block's end.
  return std::min(whole, ceil_div(window - 2 + chunk, block_size) + 1);
}

int64_t cache_bytes(std::span<const CacheSpec> specs, int64_t tokens) {
  int64_t bytes = 0;
  for (const CacheSpec& spec : specs) {
    const int64_t kept = spec.kind == CacheKind::window ? std::min(tokens, spec.window) : tokens;
    bytes = saturating_add(bytes, saturating_mul(kept, spec.bytes_per_token));
    bytes = saturating_add(bytes, spec.state_bytes);
  }
  return bytes;
}

int64_t full_load_bytes(std::span<const CacheSpec> specs, const CacheLimits& limits) {
  check(specs, limits);
  const std::vector<CacheGroup> groups = group_specs(specs, limits.max_model_len);
  const Division division(specs, groups, limits);
  return division.bytes(division.full_load(), limits.max_num_seqs);
}

CachePlan plan_cache(std::span<const CacheSpec> specs, const CacheLimits& limits) {
  check(specs, limits);
  CachePlan plan{.limits = limits};
  plan.groups = group_specs(specs, limits.max_model_len);
  const Division division(specs, plan.groups, limits);

  const int64_t seqs = division.most_seqs();
  const int64_t blocks = division.most_blocks(seqs);
  const int64_t least = division.least();
  if (blocks < least) {
    throw invalid(
        "the cache budget of {} bytes ({}) is too small for one sequence of {} tokens: it needs {} bytes "
        "({}); "
        "raise the budget, or lower max-model-len to {} tokens, the largest context that fits",
        limits.budget_bytes, format_bytes(limits.budget_bytes), limits.max_model_len,
        division.bytes(least, 1), format_bytes(division.bytes(least, 1)),
        std::max<int64_t>(0, blocks - division.slot_blocks()) * limits.block_size);
  }
  for (CacheGroup& group : plan.groups) group.blocks = division.blocks_of(group, blocks, seqs);
  plan.used_bytes = division.bytes(blocks, seqs);
  plan.full_load_bytes = division.bytes(division.full_load(), limits.max_num_seqs);
  plan.largest_context = division.has_paged() ? (blocks - division.slot_blocks()) * limits.block_size : kMax;
  plan.states.slot_blocks = division.slot_blocks();
  if (plan.states.slot_blocks > 0) plan.states.slots = plan.groups.front().blocks / plan.states.slot_blocks;
  plan.group_of.resize(specs.size(), -1);
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    for (int handle : plan.groups[g].specs) plan.group_of[handle] = static_cast<int>(g);
  }
  return plan;
}

std::string to_string(const CachePlan& plan) {
  std::string text = fmt::format("cache: {} of {}, blocks of {} tokens\n", format_bytes(plan.used_bytes),
                                 format_bytes(plan.limits.budget_bytes), plan.limits.block_size);
  for (const CacheGroup& group : plan.groups) {
    const int64_t block_bytes = plan.limits.block_size * group.bytes_per_token;
    text += fmt::format("  {}: {} layers, {} bytes/token, {} blocks of {} = {}\n",
                        group.kind == CacheKind::paged ? "paged" : fmt::format("window {}", group.window),
                        group.specs.size(), group.bytes_per_token, group.blocks, format_bytes(block_bytes),
                        format_bytes(saturating_mul(group.blocks, block_bytes)));
  }
  if (plan.states.slot_blocks > 0) {
    text += fmt::format("  state: {} paged blocks a sequence while it runs, {} slots\n",
                        plan.states.slot_blocks, plan.states.slots);
  }
  return text;
}

}  // namespace atom
