// Grammars over bytes, compiled for masking tokens: rules that call each other, each a finite automaton.
#pragma once
#include <bitset>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace atom::text {

// Bounds of one grammar, so that a hostile schema or pattern costs little.
inline constexpr int64_t kMaxGrammarNodes =
    400'000;  // of the expressions and their automata, with repeats unrolled
inline constexpr int64_t kMaxGrammarStates = 200'000;   // after determinisation
inline constexpr int64_t kMaxGrammarWork = 20'000'000;  // members of state sets looked at
inline constexpr int kMaxGrammarDepth = 200;            // nesting of one rule's expression

using ByteSet = std::bitset<256>;
// Inclusive ranges of code points.
using CodePoints = std::vector<std::pair<char32_t, char32_t>>;

// The compiled form. Immutable; safe from many threads.
class Grammar {
 public:
  struct Edge {
    uint8_t first, last;  // bytes, inclusive
    int32_t target;
  };
  struct Call {
    int32_t rule;
    int32_t behind;  // the state when the rule is through
  };
  // Every state can reach the end of its rule. Ranges are into the arrays below.
  struct State {
    int32_t edges_begin = 0, edges_end = 0;  // ascending, disjoint
    int32_t calls_begin = 0, calls_end = 0;
    bool accepts = false;  // the rule may end here
  };
  struct Rule {
    std::string name;
    int32_t start = 0;
    ByteSet first;  // bytes that its texts begin with
  };

  std::span<const Edge> edges(int32_t state) const {
    const State& s = states_[static_cast<size_t>(state)];
    return std::span(edges_).subspan(static_cast<size_t>(s.edges_begin),
                                     static_cast<size_t>(s.edges_end - s.edges_begin));
  }
  std::span<const Call> calls(int32_t state) const {
    const State& s = states_[static_cast<size_t>(state)];
    return std::span(calls_).subspan(static_cast<size_t>(s.calls_begin),
                                     static_cast<size_t>(s.calls_end - s.calls_begin));
  }
  bool accepts(int32_t state) const { return states_[static_cast<size_t>(state)].accepts; }
  bool goes_on(int32_t state) const {
    const State& s = states_[static_cast<size_t>(state)];
    return s.edges_begin < s.edges_end || s.calls_begin < s.calls_end;
  }
  const Rule& rule(int32_t index) const { return rules_[static_cast<size_t>(index)]; }
  int32_t start() const { return rule(root_).start; }
  int64_t state_count() const { return static_cast<int64_t>(states_.size()); }

 private:
  friend class GrammarCompiler;
  std::vector<Rule> rules_;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<Call> calls_;
  int32_t root_ = 0;
};

// Collects rules as expressions, then compiles. An expression is a number that this builder gave. Beyond the
// bounds above it goes on without effect and compile() fails.
class GrammarBuilder {
 public:
  using Expr = int32_t;

  Expr empty() { return concat({}); }
  Expr nothing() { return choice({}); }  // matches no text
  Expr bytes(ByteSet set);               // one byte
  Expr literal(std::string_view text);
  Expr code_points(const CodePoints& ranges);  // one character, as UTF-8; surrogates are left out
  Expr concat(std::vector<Expr> parts);
  Expr choice(std::vector<Expr> parts);
  Expr repeat(Expr part, int64_t min, int64_t max = -1);  // max -1: any number
  Expr optional(Expr part) { return repeat(part, 0, 1); }
  Expr call(int rule);

  int add_rule(std::string name);  // to be defined before compile()
  void define(int rule, Expr body);
  int rule(std::string name, Expr body);  // both
  int64_t rule_count() const { return static_cast<int64_t>(rules_.size()); }
  bool full() const { return full_; }  // beyond the bounds: whoever reads a source need not go on

  // Error (invalid): beyond the bounds; a rule that is called but not defined; left recursion; no text
  // matches.
  Result<std::shared_ptr<const Grammar>> compile(int root) const;

 private:
  friend class GrammarCompiler;
  enum class Kind : uint8_t { bytes, concat, choice, repeat, call };
  struct Node {
    Kind kind;
    int32_t begin = 0, end = 0;  // parts_ of concat, choice and repeat
    int64_t min = 0, max = 0;    // repeat
    int32_t value = 0;           // bytes: index of the set; call: the rule
    int32_t depth = 0;
  };
  Expr add(Node node, std::span<const Expr> parts);

  std::vector<Node> nodes_{{Kind::concat}};  // node 0 stands for what went wrong
  std::vector<Expr> parts_;
  std::vector<ByteSet> sets_;
  std::vector<std::pair<std::string, Expr>> rules_;  // body -1: not defined
  bool full_ = false;
};

}  // namespace atom::text
