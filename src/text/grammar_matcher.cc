// The pushdown automaton at work.
#include "text/grammar_matcher.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/check.h"

namespace atom::text {
namespace {

constexpr int32_t kUnknown = -3;
constexpr int32_t kBottom = 0;  // the configuration of kDone alone, which is below all others

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
    if (next < 0 || !visit(at, next)) {
      at = node.end;
      continue;
    }
    levels.push_back({node.end, next});
    ++at;
  }
}

}  // namespace

GrammarRun::GrammarRun(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)), stacks_{{-1, kDead}} {
  intern_config({kDone});
}

int32_t GrammarRun::intern_stack(Stack stack) {
  if (stack == stacks_[kDone]) return kDone;
  const uint64_t key =
      (static_cast<uint64_t>(static_cast<uint32_t>(stack.state)) << 32) | static_cast<uint32_t>(stack.below);
  const auto [it, added] = stack_ids_.try_emplace(key, static_cast<int32_t>(stacks_.size()));
  if (added) stacks_.push_back(stack);
  return it->second;
}

int32_t GrammarRun::intern_config(std::vector<int32_t> stacks) {
  if (stacks.empty()) return kDead;
  std::sort(stacks.begin(), stacks.end());
  stacks.erase(std::unique(stacks.begin(), stacks.end()), stacks.end());
  if (stacks.size() > kMaxReadings) return kTooMany;
  const auto [it, added] = config_ids_.try_emplace(std::move(stacks), static_cast<int32_t>(configs_.size()));
  if (added) {
    configs_.push_back(&it->first);
    steps_.emplace_back();
  }
  return it->second;
}

std::span<const int32_t> GrammarRun::stacks(int32_t config) const {
  return *configs_[static_cast<size_t>(config)];
}

int32_t GrammarRun::intern_found() {
  std::unordered_set<int32_t> returned;
  for (size_t i = 0; i < found_.size() && found_.size() <= kMaxFound; ++i) {
    const Stack top = found_[i];
    if (top.state < 0 || !grammar_->accepts(top.state) || !returned.insert(top.below).second) continue;
    for (const int32_t index : stacks(top.below)) found_.push_back(stack(index));
  }
  if (found_.size() > kMaxFound) return kTooMany;
  std::erase_if(found_, [&](const Stack& s) { return s.state >= 0 && !grammar_->goes_on(s.state); });
  std::sort(found_.begin(), found_.end());
  found_.erase(std::unique(found_.begin(), found_.end()), found_.end());
  std::vector<int32_t> config;
  for (size_t i = 0; i < found_.size();) {
    Stack merged = found_[i];
    if (++i < found_.size() && found_[i].state == merged.state) {
      std::vector<int32_t> below(stacks(merged.below).begin(), stacks(merged.below).end());
      for (; i < found_.size() && found_[i].state == merged.state && below.size() <= kMaxFound; ++i) {
        const std::span<const int32_t> more = stacks(found_[i].below);
        below.insert(below.end(), more.begin(), more.end());
      }
      merged.below = below.size() > kMaxFound ? kTooMany : intern_config(std::move(below));
      if (merged.below == kTooMany) return kTooMany;
    }
    config.push_back(intern_stack(merged));
  }
  return intern_config(std::move(config));
}

int32_t GrammarRun::begin(int32_t state) {
  found_ = {{state, kBottom}};
  return intern_found();
}

int32_t GrammarRun::return_from(int32_t stack_index) {
  found_.clear();
  for (const int32_t index : stacks(stack(stack_index).below)) found_.push_back(stack(index));
  return intern_found();
}

void GrammarRun::advance(Stack top, uint8_t byte) {
  if (found_.size() > kMaxFound) return;
  const std::span<const Grammar::Edge> edges = grammar_->edges(top.state);
  const auto edge =
      std::partition_point(edges.begin(), edges.end(), [&](const Grammar::Edge& e) { return e.last < byte; });
  if (edge != edges.end() && edge->first <= byte) found_.push_back({edge->target, top.below});
  for (const Grammar::Call& call : grammar_->calls(top.state)) {
    const Grammar::Rule& rule = grammar_->rule(call.rule);
    if (!rule.first.test(byte)) continue;
    // Where nothing can follow the call, the called rule returns further down, and recursion takes no space.
    const bool last = !grammar_->goes_on(call.behind);
    const int32_t below = last ? top.below : intern_config({intern_stack({call.behind, top.below})});
    advance({rule.start, below}, byte);
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
    if (index != kDone) advance(stack(index), byte);
  }
  const int32_t next = intern_found();
  return steps_[static_cast<size_t>(config)][byte] = next;
}

void GrammarRun::keep(std::span<int32_t> configs) {
  std::map<int32_t, int32_t> copies;  // by number, so that those below come first
  for (const int32_t config : configs) copies.emplace(config, kDead);
  for (auto it = copies.end(); it != copies.begin();) {
    for (const int32_t index : stacks((--it)->first)) {
      if (index != kDone) copies.emplace(stack(index).below, kDead);
    }
  }
  GrammarRun fresh(grammar_);
  for (auto& [config, copy] : copies) {
    std::vector<int32_t> all;
    for (const int32_t index : stacks(config)) {
      const Stack& s = stack(index);
      all.push_back(index == kDone ? kDone : fresh.intern_stack({s.state, copies.at(s.below)}));
    }
    copy = fresh.intern_config(std::move(all));
  }
  for (int32_t& config : configs) config = copies.at(config);
  fresh.limit_ = std::max(kLarge, 2 * (fresh.configs_.size() + fresh.stacks_.size()));
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
  if (begin >= 0) {
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
  failed_ = false;
  for (const char c : bytes) {
    const int32_t next = run_.step(history_.back(), static_cast<uint8_t>(c));
    if (next < 0) {
      failed_ = next == GrammarRun::kTooMany;
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
  failed_ = false;
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
    if (behind < 0 || run_.must_end(behind)) continue;
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
