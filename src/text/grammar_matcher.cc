// The pushdown automaton at work.
#include "text/grammar_matcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace atom::text {
namespace {

constexpr int32_t kUnknown = -2;

void set_bits(std::span<const int32_t> ids, TokenBits& bits) {
  for (const int32_t id : ids) bits[static_cast<size_t>(id) / 32] |= uint32_t{1} << (id % 32);
}

// Walks the subtree below `top`, where the run stands in `config`, as far as the grammar allows, and calls
// visit(node, configuration) for each node reached; visit says whether to go deeper.
template <class Visit>
void walk(const TokenTrie& trie, GrammarRun& run, uint32_t top, int32_t config, Visit visit) {
  struct Level {
    uint32_t end;
    int32_t config;
  };
  std::vector<Level> levels = {{trie.node(top).end, config}};
  for (uint32_t at = top + 1; at < trie.node(top).end;) {
    while (at >= levels.back().end) levels.pop_back();
    const TokenTrie::Node& node = trie.node(at);
    const int32_t next = run.step(levels.back().config, node.byte);
    if (next == GrammarRun::kDead || !visit(at, next)) {
      at = node.end;
      continue;
    }
    levels.push_back({node.end, next});
    ++at;
  }
}

}  // namespace

GrammarRun::GrammarRun(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)), stacks_{{-1, kDead}} {}

int32_t GrammarRun::intern_stack(int32_t state, int32_t below) {
  const uint64_t key =
      (static_cast<uint64_t>(static_cast<uint32_t>(state)) << 32) | static_cast<uint32_t>(below);
  const auto [it, added] = stack_ids_.try_emplace(key, static_cast<int32_t>(stacks_.size()));
  if (added) stacks_.push_back({state, below});
  return it->second;
}

int32_t GrammarRun::intern_config() {
  if (found_.empty()) return kDead;
  std::sort(found_.begin(), found_.end());
  found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
  failed_ = failed_ || found_.size() > kMaxReadings;
  if (failed_) return kDead;
  const auto [it, added] = config_ids_.try_emplace(found_, static_cast<int32_t>(configs_.size()));
  if (added) {
    configs_.push_back(&it->first);
    steps_.emplace_back();
  }
  return it->second;
}

std::span<const int32_t> GrammarRun::stacks(int32_t config) const {
  return *configs_[static_cast<size_t>(config)];
}

int32_t GrammarRun::begin(int32_t state) {
  found_.clear();
  reach(state, kDone);
  return intern_config();
}

int32_t GrammarRun::return_from(int32_t stack_index) {
  found_.clear();
  const int32_t below = stack(stack_index).below;
  if (below == kDone) return kDead;
  reach(stack(below).state, stack(below).below);
  std::erase(found_, kDone);
  return intern_config();
}

// The rule on top now stands in `state`; where it may be through, what is below goes on too.
void GrammarRun::reach(int32_t state, int32_t below) {
  for (;;) {
    if (grammar_->goes_on(state)) found_.push_back(intern_stack(state, below));
    if (!grammar_->accepts(state)) return;
    if (below == kDone) {
      found_.push_back(kDone);
      return;
    }
    const Stack parent = stack(below);
    state = parent.state;
    below = parent.below;
  }
}

void GrammarRun::advance(int32_t state, int32_t below, uint8_t byte) {
  if (found_.size() > 4 * kMaxReadings) failed_ = true;  // duplicates included
  if (failed_) return;
  const std::span<const Grammar::Edge> edges = grammar_->edges(state);
  const auto edge =
      std::partition_point(edges.begin(), edges.end(), [&](const Grammar::Edge& e) { return e.last < byte; });
  if (edge != edges.end() && edge->first <= byte) reach(edge->target, below);
  for (const Grammar::Call& call : grammar_->calls(state)) {
    const Grammar::Rule& rule = grammar_->rule(call.rule);
    if (!rule.first.test(byte)) continue;
    // Where nothing can follow the call, the called rule returns further down, and recursion takes no space.
    const bool last = !grammar_->goes_on(call.behind);
    advance(rule.start, last ? below : intern_stack(call.behind, below), byte);
  }
}

int32_t GrammarRun::step(int32_t config, uint8_t byte) {
  std::unique_ptr<int32_t[]>& steps = steps_[static_cast<size_t>(config)];
  if (steps == nullptr) {
    steps = std::make_unique<int32_t[]>(256);
    std::fill_n(steps.get(), 256, kUnknown);
  }
  if (steps[byte] != kUnknown) return steps[byte];
  found_.clear();
  for (const int32_t index : stacks(config)) {
    if (index == kDone) continue;
    const Stack top = stack(index);
    advance(top.state, top.below, byte);
  }
  const int32_t next = intern_config();
  return steps_[static_cast<size_t>(config)][byte] = next;
}

void GrammarRun::keep(std::span<int32_t> configs) {
  GrammarRun fresh(grammar_);
  std::unordered_map<int32_t, int32_t> stacks = {{kDone, kDone}}, numbers;
  std::vector<int32_t> above;
  for (int32_t& config : configs) {
    const auto [it, added] = numbers.try_emplace(config, kDead);
    if (added) {
      fresh.found_.clear();
      for (const int32_t index : *configs_[static_cast<size_t>(config)]) {
        int32_t at = index;
        for (; !stacks.contains(at); at = stack(at).below) above.push_back(at);
        int32_t copy = stacks.at(at);
        for (; !above.empty(); above.pop_back()) {
          copy = fresh.intern_stack(stack(above.back()).state, copy);
          stacks.emplace(above.back(), copy);
        }
        fresh.found_.push_back(copy);
      }
      it->second = fresh.intern_config();
    }
    config = it->second;
  }
  fresh.limit_ = std::max(kLarge, 2 * (fresh.configs_.size() + fresh.stacks_.size()));
  fresh.failed_ = failed_;
  *this = std::move(fresh);
}

GrammarMasks::GrammarMasks(std::shared_ptr<const Grammar> grammar, std::shared_ptr<const TokenTrie> trie)
    : grammar_(std::move(grammar)), trie_(std::move(trie)), run_(grammar_) {}

std::shared_ptr<const GrammarMasks::Local> GrammarMasks::local(int32_t state) {
  const std::lock_guard lock(mutex_);
  if (const auto it = kept_.find(state); it != kept_.end()) return it->second;
  auto local = std::make_shared<Local>();
  local->tokens.resize(static_cast<size_t>(trie_->vocab_size() + 31) / 32);
  // Alone on its stack, the state's rule ends where the whole run could end.
  const int32_t begin = run_.begin(state);
  if (begin != GrammarRun::kDead) {
    walk(*trie_, run_, 0, begin, [&](uint32_t node, int32_t config) {
      set_bits(trie_->tokens_at(node), local->tokens);
      const bool leaf = trie_->node(node).end == node + 1;
      if (run_.can_end(config) && !leaf) local->exits.push_back(node);
      return true;
    });
  }
  if (run_.is_large()) run_.keep({});
  if (kept_.size() >= kMaxKept) kept_.clear();
  kept_.emplace(state, local);
  return local;
}

GrammarMatcher::GrammarMatcher(std::shared_ptr<GrammarMasks> masks)
    : masks_(std::move(masks)), run_(masks_->grammar()), history_{run_.begin(masks_->grammar()->start())} {}

bool GrammarMatcher::accept(std::string_view bytes) {
  const size_t before = history_.size();
  for (const char c : bytes) {
    const int32_t next = run_.step(history_.back(), static_cast<uint8_t>(c));
    if (next == GrammarRun::kDead) {
      history_.resize(before);
      return false;
    }
    history_.push_back(next);
  }
  size_ += static_cast<int64_t>(bytes.size());
  forget();
  return true;
}

void GrammarMatcher::rollback(int64_t bytes) {
  CHECK(bytes >= 0 && bytes < static_cast<int64_t>(history_.size()), "{} bytes", bytes);
  history_.resize(history_.size() - static_cast<size_t>(bytes));
  size_ -= bytes;
}

// Keeps memory bounded however long the text.
void GrammarMatcher::forget() {
  constexpr auto kKeep = static_cast<size_t>(kMaxRollback) + 1;
  if (history_.size() > 4 * kKeep) history_.erase(history_.begin(), history_.end() - kKeep);
  if (!run_.is_large()) return;
  if (history_.size() > kKeep) history_.erase(history_.begin(), history_.end() - kKeep);
  run_.keep(history_);
  kept_.clear();
}

const TokenBits& GrammarMatcher::bits(int32_t config) {
  if (const auto it = kept_.find(config); it != kept_.end()) return it->second;
  const TokenTrie& trie = masks_->trie();
  TokenBits bits(static_cast<size_t>(trie.vocab_size() + 31) / 32);
  const std::vector<int32_t> stacks(run_.stacks(config).begin(), run_.stacks(config).end());
  for (const int32_t index : stacks) {
    if (index == GrammarRun::kDone) continue;
    const std::shared_ptr<const GrammarMasks::Local> local = masks_->local(run_.stack(index).state);
    for (size_t i = 0; i < bits.size(); ++i) bits[i] |= local->tokens[i];
    const int32_t behind = run_.return_from(index);
    if (behind == GrammarRun::kDead) continue;
    for (const uint32_t exit : local->exits) {
      walk(trie, run_, exit, behind, [&](uint32_t node, int32_t) {
        set_bits(trie.tokens_at(node), bits);
        return true;
      });
    }
  }
  if (kept_.size() >= kMaxKept) kept_.clear();
  return kept_.emplace(config, std::move(bits)).first->second;
}

void GrammarMatcher::mask(std::span<uint32_t> mask) {
  const TokenBits& allowed = bits(history_.back());
  CHECK(mask.size() >= allowed.size());
  std::copy(allowed.begin(), allowed.end(), mask.begin());
  std::fill(mask.begin() + static_cast<std::ptrdiff_t>(allowed.size()), mask.end(), 0);
}

}  // namespace atom::text
