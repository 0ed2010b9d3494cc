// Variables while a template runs, and the objects that close over them: macros and loops.
#pragma once
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_runtime.h"

namespace atom::jinja {

class Interpreter;

// The variables of one block; what it lacks is looked up in the block around it. Shared with the macros
// defined in it, which never form a cycle because scopes hold them by plain pointer.
struct Scope {
  explicit Scope(std::shared_ptr<Scope> parent) : parent(std::move(parent)) {}
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<int, Value>> variables;

  void set(int name, Value value) {
    for (auto& [key, old] : variables) {
      if (key != name) continue;
      old = std::move(value);
      return;
    }
    variables.emplace_back(name, std::move(value));
  }
};
using ScopePtr = std::shared_ptr<Scope>;

struct Macro final : Object {
  Macro(Interpreter& interpreter, const MacroDefinition& definition, ScopePtr scope)
      : interpreter(interpreter), definition(definition), scope(std::move(scope)) {}
  Interpreter& interpreter;
  const MacroDefinition& definition;
  ScopePtr scope;

  const char* type_name() const override { return "Macro"; }
  std::string repr(Runtime&, int) const override;
  bool callable() const override { return true; }
  Value call(Runtime& runtime, const Args& args) override;
  std::optional<Value> attribute(Runtime& runtime, std::string_view name) override;
};

// The variable `loop`.
struct Loop final : Object {
  Loop(Interpreter& interpreter, const ForStmt& statement, std::shared_ptr<const List> items, int depth0)
      : interpreter(interpreter), statement(statement), items(std::move(items)), depth0(depth0) {}
  Interpreter& interpreter;
  const ForStmt& statement;
  std::shared_ptr<const List> items;
  int depth0;
  int64_t index0 = 0;
  ScopePtr scope;  // around the loop; set for recursive ones only
  std::optional<std::vector<Value>> last_changed;

  const char* type_name() const override { return "LoopContext"; }
  std::string repr(Runtime&, int) const override;
  bool callable() const override { return true; }
  std::optional<int64_t> length() const override { return static_cast<int64_t>(items->items.size()); }
  // loop(items): the body again, one level deeper.
  Value call(Runtime& runtime, const Args& args) override;
  std::optional<Value> attribute(Runtime& runtime, std::string_view name) override;
};

}  // namespace atom::jinja
