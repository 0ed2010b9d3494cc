// Statements, macros and loops.
#include "text/jinja_interpreter.h"

#include <algorithm>

#include <fmt/format.h>

#include "text/jinja_evaluator.h"
#include "text/jinja_operators.h"
#include "text/jinja_scope.h"

namespace atom::jinja {

enum class Flow { next, break_, continue_ };

class Interpreter : Evaluator {
 public:
  Interpreter(const Program& program, Runtime& runtime) : Evaluator(program, runtime) {}

  std::string run(const Variables& variables) {
    scope_ = std::make_shared<Scope>(nullptr);
    for (const auto& [name, value] : variables) {
      const auto place = std::find(program_.names.begin(), program_.names.end(), name);
      if (place != program_.names.end()) scope_->set(static_cast<int>(place - program_.names.begin()), value);
    }
    std::string out;
    out_ = &out;
    try {
      exec(program_.body);
    } catch (const TemplateError& error) {
      if (error.raised()) throw;
      fail("line {}: {}", line_, error.message());
    }
    return out;
  }

  Value call_macro(const Macro& macro, const Args& args);
  Value call_loop(const Loop& loop, const Value& items);
  const Program& program() const { return program_; }

 private:
  Flow exec(const Body& body) {
    runtime_.check_stack();
    for (const auto& statement : body) {
      runtime_.charge(1);
      line_ = statement->line;
      const Flow flow = exec(*statement);
      if (flow != Flow::next) return flow;
    }
    return Flow::next;
  }

  Flow exec(const Stmt& statement) {
    switch (statement.kind) {
      case StmtKind::text:
        write(static_cast<const TextStmt&>(statement).text);
        break;
      case StmtKind::print:
        print(eval(*static_cast<const PrintStmt&>(statement).value));
        break;
      case StmtKind::if_:
        return exec_if(static_cast<const IfStmt&>(statement));
      case StmtKind::for_: {
        const auto& loop = static_cast<const ForStmt&>(statement);
        exec_for(loop, eval(*loop.items), 0);
        break;
      }
      case StmtKind::set: {
        const auto& set = static_cast<const SetStmt&>(statement);
        assign(set.target, eval(*set.value));
        break;
      }
      case StmtKind::set_block:
        return exec_set_block(static_cast<const SetBlockStmt&>(statement));
      case StmtKind::macro: {
        const auto& macro = static_cast<const MacroStmt&>(statement);
        scope_->set(macro.name, Value(runtime_.make<Macro>(*this, macro.definition, scope_)));
        break;
      }
      case StmtKind::call_block: {
        const auto& block = static_cast<const CallBlockStmt&>(statement);
        print(eval_call(*block.call, runtime_.make<Macro>(*this, block.caller, scope_)));
        break;
      }
      case StmtKind::filter_block:
        return exec_filter_block(static_cast<const FilterBlockStmt&>(statement));
      case StmtKind::with:
        return exec_with(static_cast<const WithStmt&>(statement));
      case StmtKind::scope:
        return exec_scoped(static_cast<const ScopeStmt&>(statement).body);
      case StmtKind::break_:
        return Flow::break_;
      case StmtKind::continue_:
        return Flow::continue_;
    }
    return Flow::next;
  }

  // ---- output ----

  void write(std::string_view text) {
    Runtime::check_size(static_cast<int64_t>(out_->size() + text.size()));
    runtime_.charge_scan(text.size());
    *out_ += text;
  }
  void print(const Value& value) {
    if (value.is_string()) {
      write(value.text());
    } else {
      write(to_str(runtime_, value));
    }
  }

  // Runs `body` in a scope of its own inside the current one.
  Flow exec_scoped(const Body& body) {
    const ScopePtr outer = enter(scope_);
    const Flow flow = exec(body);
    scope_ = outer;
    return flow;
  }
  // Makes a scope inside `parent` the current one; returns the one before. An error abandons the whole run,
  // so nothing needs to restore it then.
  ScopePtr enter(ScopePtr parent) {
    runtime_.charge_bytes(sizeof(Scope));
    return std::exchange(scope_, std::make_shared<Scope>(std::move(parent)));
  }

  // What `run` writes, as a string value.
  template <class Run>
  Value capture(Run run) {
    std::string text;
    std::string* const outer = std::exchange(out_, &text);
    run();
    out_ = outer;
    return runtime_.string(std::move(text));
  }

  // ---- statements ----

  Flow exec_if(const IfStmt& statement) {
    for (const auto& [condition, body] : statement.branches)
      if (truthy(eval(*condition))) return exec(body);
    return exec(statement.otherwise);
  }

  Flow exec_set_block(const SetBlockStmt& statement) {
    Flow flow = Flow::next;
    Value text = capture([&] { flow = exec_scoped(statement.body); });
    if (flow != Flow::next) return flow;
    assign(statement.target, statement.filter ? eval_filters(*statement.filter, text) : std::move(text));
    return flow;
  }

  Flow exec_filter_block(const FilterBlockStmt& statement) {
    Flow flow = Flow::next;
    const Value text = capture([&] { flow = exec_scoped(statement.body); });
    if (flow == Flow::next) print(eval_filters(*statement.filter, text));
    return flow;
  }

  Flow exec_with(const WithStmt& statement) {
    std::vector<Value> values;
    for (const auto& [target, value] : statement.values) values.push_back(eval(*value));
    const ScopePtr outer = enter(scope_);
    for (size_t i = 0; i < values.size(); ++i) assign(statement.values[i].first, values[i]);
    const Flow flow = exec(statement.body);
    scope_ = outer;
    return flow;
  }

  void exec_for(const ForStmt& statement, const Value& sequence, int depth0) {
    std::shared_ptr<const List> items = items_of(runtime_, sequence);
    if (statement.condition) items = filtered(statement, *items);
    Loop* loop = nullptr;
    if (statement.uses_loop) loop = runtime_.make<Loop>(*this, statement, items, depth0);
    if (statement.recursive) loop->scope = scope_;
    const ScopePtr outer = scope_;
    bool completed = false;
    for (size_t i = 0; i < items->items.size(); ++i) {
      runtime_.charge(1);
      enter(outer);
      if (loop != nullptr) {
        loop->index0 = static_cast<int64_t>(i);
        scope_->set(program_.loop, Value(loop));
      }
      assign(statement.target, items->items[i]);
      const Flow flow = exec(statement.body);
      if (flow == Flow::break_) break;
      completed = completed || flow == Flow::next;
    }
    scope_ = outer;
    // As in Jinja2, `else` also runs where no pass reached its end because all broke off or continued.
    if (!completed) exec_scoped(statement.otherwise);
  }

  std::shared_ptr<const List> filtered(const ForStmt& statement, const List& items) {
    std::vector<Value> kept;
    for (const Value& item : items.items) {
      const ScopePtr outer = enter(scope_);
      assign(statement.target, item);
      if (truthy(eval(*statement.condition))) kept.push_back(item);
      scope_ = outer;
    }
    return runtime_.list(std::move(kept)).list_ref();
  }

  void assign(const Target& target, const Value& value) {
    if (target.unpacks) {
      const auto items = items_of(runtime_, value);
      if (items->items.size() != target.parts.size())
        fail("cannot unpack {} values into {} names", items->items.size(), target.parts.size());
      for (size_t i = 0; i < target.parts.size(); ++i) assign(target.parts[i], items->items[i]);
    } else if (target.attribute.empty()) {
      scope_->set(target.name, value);
    } else {
      assign_attribute(target, value);
    }
  }

  void assign_attribute(const Target& target, const Value& value) {
    for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
      for (const auto& [name, variable] : scope->variables) {
        if (name != target.name) continue;
        auto* space = variable.as<Namespace>();
        if (space == nullptr) fail("cannot assign an attribute of what is no namespace");
        runtime_.charge(1 + static_cast<int64_t>(space->values.items.size() / 8));
        for (auto& [key, old] : space->values.items) {
          if (key.text() != target.attribute) continue;
          old = value;
          return;
        }
        space->values.items.emplace_back(runtime_.string(target.attribute), value);
        return;
      }
    }
    fail("'{}' is undefined", program_.names[static_cast<size_t>(target.name)]);
  }

  void bind_arguments(const Macro& macro, const Args& args);

  std::string* out_ = nullptr;
};

// ---- macros ----

void Interpreter::bind_arguments(const Macro& macro, const Args& args) {
  const MacroDefinition& definition = macro.definition;
  const size_t count = definition.parameters.size(), given = std::min(count, args.positional.size());
  std::vector<bool> used(args.named.size(), false);
  const auto named = [&](std::string_view name) -> const Value* {
    for (size_t i = 0; i < args.named.size(); ++i) {
      if (used[i] || args.named[i].first != name) continue;
      used[i] = true;
      return &args.named[i].second;
    }
    return nullptr;
  };
  bool caller_bound = false;
  for (size_t i = 0; i < count; ++i) {
    const int parameter = definition.parameters[i];
    const std::string& name = program_.names[static_cast<size_t>(parameter)];
    caller_bound = caller_bound || parameter == program_.caller;
    const size_t first_default = count - definition.defaults.size();
    if (i < given) {
      scope_->set(parameter, args.positional[i]);
    } else if (const Value* value = named(name)) {
      scope_->set(parameter, *value);
    } else if (i >= first_default) {
      scope_->set(parameter, eval(*definition.defaults[i - first_default]));
    } else {
      scope_->set(parameter, runtime_.undefined(fmt::format("parameter '{}' was not provided", name)));
    }
  }
  if (definition.uses_caller && !caller_bound) {
    const Value* caller = named("caller");
    scope_->set(program_.caller, caller != nullptr ? *caller : runtime_.undefined("no caller defined"));
  }
  Dict rest;
  for (size_t i = 0; i < args.named.size(); ++i) {
    if (used[i]) continue;
    if (!definition.uses_kwargs)
      fail("macro '{}' takes no keyword argument '{}'", definition.name, args.named[i].first);
    rest.items.emplace_back(runtime_.string(args.named[i].first), args.named[i].second);
  }
  if (definition.uses_kwargs) scope_->set(program_.kwargs, runtime_.dict(std::move(rest)));
  if (definition.uses_varargs) {
    const auto first = args.positional.begin() + static_cast<ptrdiff_t>(given);
    scope_->set(program_.varargs, runtime_.tuple({first, args.positional.end()}));
  } else if (args.positional.size() > count) {
    fail("macro '{}' takes not more than {} argument(s)", definition.name, count);
  }
}

Value Interpreter::call_macro(const Macro& macro, const Args& args) {
  runtime_.check_stack();
  return capture([&] {
    const ScopePtr outer = enter(macro.scope);
    bind_arguments(macro, args);
    exec(macro.definition.body);
    scope_ = outer;
  });
}

Value Interpreter::call_loop(const Loop& loop, const Value& items) {
  runtime_.check_stack();
  return capture([&] {
    const ScopePtr outer = std::exchange(scope_, loop.scope);
    exec_for(loop.statement, items, loop.depth0 + 1);
    scope_ = outer;
  });
}

std::string Macro::repr(Runtime&, int) const { return fmt::format("<Macro {}>", quote(definition.name)); }

Value Macro::call(Runtime&, const Args& args) { return interpreter.call_macro(*this, args); }

std::optional<Value> Macro::attribute(Runtime& runtime, std::string_view name) {
  if (name == "name") return runtime.string(definition.name);
  if (name == "caller") return Value::boolean(definition.uses_caller);
  if (name == "catch_kwargs") return Value::boolean(definition.uses_kwargs);
  if (name == "catch_varargs") return Value::boolean(definition.uses_varargs);
  if (name != "arguments") return {};
  std::vector<Value> names;
  for (const int parameter : definition.parameters)
    names.push_back(runtime.string(interpreter.program().names[static_cast<size_t>(parameter)]));
  return runtime.tuple(std::move(names));
}

// ---- loops ----

namespace {

Value loop_cycle(Runtime&, const Value& self, const Args& args) {
  if (args.positional.empty() || !args.named.empty()) fail("loop.cycle() needs the values to cycle through");
  return args.positional[static_cast<size_t>(self.as<Loop>()->index0) % args.positional.size()];
}

Value loop_changed(Runtime& runtime, const Value& self, const Args& args) {
  auto& last = self.as<Loop>()->last_changed;
  bool same = last && last->size() == args.positional.size();
  for (size_t i = 0; same && i < last->size(); ++i) same = equals(runtime, (*last)[i], args.positional[i]);
  if (!same) last = args.positional;
  return Value::boolean(!same);
}

}  // namespace

std::string Loop::repr(Runtime&, int) const {
  return fmt::format("<LoopContext {}/{}>", index0 + 1, items->items.size());
}

Value Loop::call(Runtime&, const Args& args) {
  if (!statement.recursive) fail("the loop must have the 'recursive' marker to be called");
  return interpreter.call_loop(*this, *bind("loop", args, {"iterable"}, 1)[0]);
}

std::optional<Value> Loop::attribute(Runtime& runtime, std::string_view name) {
  const auto count = static_cast<int64_t>(items->items.size());
  if (name == "index") return Value::integer(index0 + 1);
  if (name == "index0") return Value::integer(index0);
  if (name == "revindex") return Value::integer(count - index0);
  if (name == "revindex0") return Value::integer(count - index0 - 1);
  if (name == "first") return Value::boolean(index0 == 0);
  if (name == "last") return Value::boolean(index0 + 1 == count);
  if (name == "length") return Value::integer(count);
  if (name == "depth") return Value::integer(depth0 + 1);
  if (name == "depth0") return Value::integer(depth0);
  if (name == "previtem")
    return index0 > 0 ? items->items[static_cast<size_t>(index0) - 1]
                      : runtime.undefined("there is no previous item");
  if (name == "nextitem")
    return index0 + 1 < count ? items->items[static_cast<size_t>(index0) + 1]
                              : runtime.undefined("there is no next item");
  if (name == "cycle") return Value(runtime.make<Function>("cycle", loop_cycle, Value(this)));
  if (name == "changed") return Value(runtime.make<Function>("changed", loop_changed, Value(this)));
  return {};
}

std::string render(const Program& program, Runtime& runtime, const Variables& variables) {
  return Interpreter(program, runtime).run(variables);
}

}  // namespace atom::jinja
