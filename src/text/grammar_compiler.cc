// From expressions to automata: one non-deterministic automaton per rule, made deterministic, trimmed and
// checked.
#include <algorithm>
#include <map>

#include "text/grammar.h"

namespace atom::text {

class GrammarCompiler {
 public:
  GrammarCompiler(const GrammarBuilder& builder, int root) : b_(builder), root_(root) {}

  Result<std::shared_ptr<const Grammar>> run() {
    if (b_.full()) return too_large();
    for (const auto& [name, body] : b_.rules_) {
      if (body < 0) return invalid("grammar: rule \"{}\" is not defined", name);
      if (b_.nodes_[static_cast<size_t>(body)].depth > kMaxGrammarDepth) {
        return invalid("grammar: rule \"{}\" is nested deeper than {} levels", name, kMaxGrammarDepth);
      }
    }
    find_nullable();
    if (full_) return too_large();
    for (size_t rule = 0; rule < b_.rules_.size(); ++rule) {
      nodes_.clear();
      const int32_t begin = add_node(), end = add_node();
      connect(b_.rules_[rule].second, begin, end);
      if (full_) return too_large();
      determinise(rule, begin, end);
      if (full_) return too_large();
    }
    trim();
    if (full_) return too_large();
    if (!productive_[static_cast<size_t>(root_)]) return invalid("grammar: no text matches it");
    if (const int rule = left_recursive(); rule >= 0) {
      return invalid("grammar: rule \"{}\" is left-recursive; write the repetition with * or on the right",
                     b_.rules_[static_cast<size_t>(rule)].first);
    }
    if (deepest_start_ > kMaxGrammarDepth) {
      return invalid("grammar: more than {} rules begin with each other", kMaxGrammarDepth);
    }
    return std::shared_ptr<const Grammar>(pack());
  }

 private:
  using Expr = GrammarBuilder::Expr;
  using Kind = GrammarBuilder::Kind;

  struct Node {                                      // of the automaton of one rule
    std::vector<int32_t> empty;                      // edges that take no text
    std::vector<std::pair<int32_t, int32_t>> bytes;  // set, target
    std::vector<std::pair<int32_t, int32_t>> calls;  // rule, target
  };
  struct State {
    std::vector<Grammar::Edge> edges;
    std::vector<Grammar::Call> calls;
    bool accepts = false;
  };

  Error too_large() const {
    return invalid("grammar: too large; simplify it, or lower its repeat counts and lengths");
  }

  // Counts work; false, and full_, beyond what one grammar may take.
  bool spend(size_t work) {
    work_done_ += static_cast<int64_t>(work);
    full_ = full_ || work_done_ > kMaxGrammarWork;
    return !full_;
  }

  const GrammarBuilder::Node& expr(Expr e) const { return b_.nodes_[static_cast<size_t>(e)]; }
  std::span<const Expr> parts(const GrammarBuilder::Node& node) const {
    return std::span(b_.parts_).subspan(static_cast<size_t>(node.begin),
                                        static_cast<size_t>(node.end - node.begin));
  }

  void find_nullable() {
    nullable_.assign(b_.rules_.size(), false);
    // An expression's parts come before it, so that one pass over all of them suffices per round.
    std::vector<bool> empty(b_.nodes_.size());
    for (bool changed = true; changed && spend(b_.nodes_.size());) {
      for (size_t i = 0; i < b_.nodes_.size(); ++i) {
        const GrammarBuilder::Node& node = b_.nodes_[i];
        const auto part_empty = [&](Expr part) { return empty[static_cast<size_t>(part)]; };
        const auto all = parts(node);
        switch (node.kind) {
          case Kind::bytes:
            break;
          case Kind::call:
            empty[i] = nullable_[static_cast<size_t>(node.value)];
            break;
          case Kind::concat:
            empty[i] = std::all_of(all.begin(), all.end(), part_empty);
            break;
          case Kind::choice:
            empty[i] = std::any_of(all.begin(), all.end(), part_empty);
            break;
          case Kind::repeat:
            empty[i] = node.min == 0 || part_empty(all[0]);
            break;
        }
      }
      changed = false;
      for (size_t rule = 0; rule < b_.rules_.size(); ++rule) {
        if (nullable_[rule] || !empty[static_cast<size_t>(b_.rules_[rule].second)]) continue;
        nullable_[rule] = true;
        changed = true;
      }
    }
  }

  int32_t add_node() {
    if (static_cast<int64_t>(nodes_.size()) >= kMaxGrammarNodes) {
      full_ = true;
      return 0;
    }
    nodes_.emplace_back();
    return static_cast<int32_t>(nodes_.size() - 1);
  }
  Node& node(int32_t index) { return nodes_[static_cast<size_t>(index)]; }

  // Lets the texts of `e` lead from one node to the other.
  void connect(Expr e, int32_t from, int32_t to) {
    if (full_) return;
    const GrammarBuilder::Node& n = expr(e);
    switch (n.kind) {
      case Kind::bytes:
        node(from).bytes.emplace_back(n.value, to);
        break;
      case Kind::call:
        node(from).calls.emplace_back(n.value, to);
        if (nullable_[static_cast<size_t>(n.value)]) node(from).empty.push_back(to);
        break;
      case Kind::choice:
        for (const Expr part : parts(n)) connect(part, from, to);
        break;
      case Kind::concat: {
        const auto all = parts(n);
        if (all.empty()) node(from).empty.push_back(to);
        for (size_t i = 0; i < all.size(); ++i) {
          const int32_t next = i + 1 == all.size() ? to : add_node();
          connect(all[i], from, next);
          from = next;
        }
        break;
      }
      case Kind::repeat: {
        const Expr part = parts(n)[0];
        for (int64_t i = 0; i < n.min && !full_; ++i) {
          const int32_t next = add_node();
          connect(part, from, next);
          from = next;
        }
        if (n.max < 0) {  // a loop of its own, so that it cannot be entered from elsewhere
          const int32_t loop = add_node();
          node(from).empty.push_back(loop);
          const int32_t back = add_node();
          connect(part, loop, back);
          node(back).empty.push_back(loop);
          node(loop).empty.push_back(to);
          break;
        }
        for (int64_t i = n.min; i < n.max && !full_; ++i) {
          node(from).empty.push_back(to);
          const int32_t next = add_node();
          connect(part, from, next);
          from = next;
        }
        node(from).empty.push_back(to);
        break;
      }
    }
  }

  using Set = std::vector<int32_t>;  // of nodes, ascending

  // Adds what empty edges reach, and leaves only nodes that matter: with edges, or the end.
  Set close(const Set& from, int32_t end) {
    Set out, work;
    if (seen_.size() < nodes_.size()) seen_.resize(nodes_.size(), 0);
    ++round_;
    for (const int32_t n : from) push_new(n, work);
    while (!work.empty()) {
      const int32_t n = work.back();
      work.pop_back();
      spend(1);
      const Node& at = node(n);
      if (n == end || !at.bytes.empty() || !at.calls.empty()) out.push_back(n);
      for (const int32_t next : at.empty) push_new(next, work);
    }
    std::sort(out.begin(), out.end());
    return out;
  }
  void push_new(int32_t n, Set& work) {
    if (seen_[static_cast<size_t>(n)] == round_) return;
    seen_[static_cast<size_t>(n)] = round_;
    work.push_back(n);
  }

  // The subset construction; calls are edges like bytes.
  void determinise(size_t rule, int32_t begin, int32_t end) {
    std::map<Set, int32_t> ids;
    std::vector<Set> pending;
    std::fill(seen_.begin(), seen_.end(), 0);
    round_ = 0;
    const auto id_of = [&](const Set& targets) {
      Set closed = close(targets, end);
      const auto [it, added] = ids.try_emplace(closed, static_cast<int32_t>(states_.size()));
      if (added) {
        states_.emplace_back();
        states_.back().accepts = std::binary_search(closed.begin(), closed.end(), end);
        pending.push_back(std::move(closed));
      }
      return it->second;
    };
    starts_.push_back(id_of({begin}));
    for (size_t done = 0; done < pending.size(); ++done) {
      const Set members = std::move(pending[done]);
      const auto state = static_cast<size_t>(starts_[rule]) + done;
      std::vector<std::pair<int32_t, int32_t>> bytes, calls;
      for (const int32_t n : members) {
        bytes.insert(bytes.end(), node(n).bytes.begin(), node(n).bytes.end());
        calls.insert(calls.end(), node(n).calls.begin(), node(n).calls.end());
      }
      full_ = full_ || static_cast<int64_t>(states_.size()) > kMaxGrammarStates;
      if (!spend(256 + 32 * bytes.size())) return;
      std::sort(calls.begin(), calls.end());
      for (size_t i = 0; i < calls.size();) {
        Set targets;
        const int32_t called = calls[i].first;
        for (; i < calls.size() && calls[i].first == called; ++i) targets.push_back(calls[i].second);
        const int32_t target = id_of(targets);
        states_[state].calls.push_back({called, target});
      }
      if (bytes.empty()) continue;
      Set last_targets;
      int32_t last_target = -1;
      for (int byte = 0; byte < 256; ++byte) {
        Set targets;
        for (const auto& [set, target] : bytes) {
          if (b_.sets_[static_cast<size_t>(set)].test(static_cast<size_t>(byte))) targets.push_back(target);
        }
        if (targets.empty()) {
          last_targets.clear();
          last_target = -1;
          continue;
        }
        if (targets != last_targets) {
          last_target = id_of(targets);
          last_targets = std::move(targets);
        }
        std::vector<Grammar::Edge>& edges = states_[state].edges;
        if (!edges.empty() && edges.back().target == last_target && edges.back().last == byte - 1) {
          edges.back().last = static_cast<uint8_t>(byte);
        } else {
          edges.push_back({static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), last_target});
        }
      }
    }
  }

  // Drops edges and calls from which the end of the rule cannot be reached.
  void trim() {
    productive_.assign(b_.rules_.size(), false);
    std::vector<bool> live(states_.size());
    for (bool changed = true; changed && spend(states_.size());) {
      changed = false;
      for (size_t s = states_.size(); s-- > 0;) {
        if (live[s]) continue;
        const State& state = states_[s];
        const bool now =
            state.accepts ||
            std::any_of(state.edges.begin(), state.edges.end(),
                        [&](const Grammar::Edge& edge) { return live[static_cast<size_t>(edge.target)]; }) ||
            std::any_of(state.calls.begin(), state.calls.end(), [&](const Grammar::Call& call) {
              return productive_[static_cast<size_t>(call.rule)] && live[static_cast<size_t>(call.behind)];
            });
        live[s] = now;
        changed = changed || now;
      }
      for (size_t rule = 0; rule < productive_.size(); ++rule) {
        const bool now = live[static_cast<size_t>(starts_[rule])];
        changed = changed || now != productive_[rule];
        productive_[rule] = now;
      }
    }
    for (State& state : states_) {
      std::erase_if(state.edges,
                    [&](const Grammar::Edge& edge) { return !live[static_cast<size_t>(edge.target)]; });
      std::erase_if(state.calls, [&](const Grammar::Call& call) {
        return !productive_[static_cast<size_t>(call.rule)] || !live[static_cast<size_t>(call.behind)];
      });
    }
  }

  // A rule that can come to call itself before any text; -1 if there is none, and then leaves_first_ holds
  // all rules.
  int left_recursive() {
    enum : uint8_t { fresh, open, done };
    std::vector<uint8_t> mark(b_.rules_.size(), fresh);
    std::vector<int> height(b_.rules_.size(), 0);
    for (size_t root = 0; root < mark.size(); ++root) {
      if (mark[root] != fresh) continue;
      std::vector<std::pair<size_t, size_t>> path = {{root, 0}};
      mark[root] = open;
      while (!path.empty()) {
        auto& [rule, next] = path.back();
        const std::vector<Grammar::Call>& calls = states_[static_cast<size_t>(starts_[rule])].calls;
        if (next == calls.size()) {
          mark[rule] = done;
          for (const Grammar::Call& call : calls)
            height[rule] = std::max(height[rule], height[static_cast<size_t>(call.rule)] + 1);
          deepest_start_ = std::max(deepest_start_, height[rule]);
          leaves_first_.push_back(rule);
          path.pop_back();
          continue;
        }
        const auto called = static_cast<size_t>(calls[next++].rule);
        if (mark[called] == open) return static_cast<int>(called);
        if (mark[called] == fresh) {
          mark[called] = open;
          path.emplace_back(called, 0);
        }
      }
    }
    return -1;
  }

  std::shared_ptr<Grammar> pack() const {
    auto grammar = std::make_shared<Grammar>();
    grammar->root_ = root_;
    for (const State& state : states_) {
      Grammar::State packed;
      packed.accepts = state.accepts;
      packed.edges_begin = static_cast<int32_t>(grammar->edges_.size());
      grammar->edges_.insert(grammar->edges_.end(), state.edges.begin(), state.edges.end());
      packed.edges_end = static_cast<int32_t>(grammar->edges_.size());
      packed.calls_begin = static_cast<int32_t>(grammar->calls_.size());
      grammar->calls_.insert(grammar->calls_.end(), state.calls.begin(), state.calls.end());
      packed.calls_end = static_cast<int32_t>(grammar->calls_.size());
      grammar->states_.push_back(packed);
    }
    for (size_t rule = 0; rule < b_.rules_.size(); ++rule) {
      grammar->rules_.push_back({b_.rules_[rule].first, starts_[rule], {}});
    }
    // The first bytes of a rule come from its start state and from the rules that it calls there.
    for (const size_t index : leaves_first_) {
      Grammar::Rule& rule = grammar->rules_[index];
      for (const Grammar::Edge& edge : grammar->edges(rule.start)) {
        for (int byte = edge.first; byte <= edge.last; ++byte) rule.first.set(static_cast<size_t>(byte));
      }
      for (const Grammar::Call& call : grammar->calls(rule.start))
        rule.first |= grammar->rule(call.rule).first;
    }
    return grammar;
  }

  const GrammarBuilder& b_;
  const int root_;
  bool full_ = false;
  int64_t work_done_ = 0;
  std::vector<bool> nullable_, productive_;
  std::vector<Node> nodes_;
  std::vector<State> states_;
  std::vector<int32_t> starts_;       // per rule
  int deepest_start_ = 0;             // calls within calls before any text
  std::vector<size_t> leaves_first_;  // rules behind those that they call at their start
  std::vector<int64_t> seen_;
  int64_t round_ = 0;
};

Result<std::shared_ptr<const Grammar>> GrammarBuilder::compile(int root) const {
  return GrammarCompiler(*this, root).run();
}

}  // namespace atom::text
