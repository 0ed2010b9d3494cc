// Expressions. Each kind with more than a line of work has a function of its own, which also keeps the frame
// of the recursive eval() small.
#include "text/jinja_evaluator.h"

#include <fmt/format.h>

#include "text/jinja_operators.h"

namespace atom::jinja {

Evaluator::Evaluator(const Program& program, Runtime& runtime) : program_(program), runtime_(runtime) {
  globals_.reserve(program.names.size());
  for (const std::string& name : program.names) globals_.push_back(find_global(name));
}

Value Evaluator::eval(const Expr& expr) {
  runtime_.charge(1);
  runtime_.check_stack();
  switch (expr.kind) {
    case ExprKind::constant:
      return static_cast<const ConstantExpr&>(expr).value;
    case ExprKind::name:
      return look_up(static_cast<const NameExpr&>(expr).name);
    case ExprKind::list:
      return runtime_.list(eval_all(static_cast<const ItemsExpr&>(expr).items));
    case ExprKind::tuple:
      return runtime_.tuple(eval_all(static_cast<const ItemsExpr&>(expr).items));
    case ExprKind::dict:
      return eval_dict(static_cast<const ItemsExpr&>(expr));
    case ExprKind::attribute: {
      const auto& node = static_cast<const AttributeExpr&>(expr);
      return get_attribute(runtime_, eval(*node.object), node.name);
    }
    case ExprKind::item: {
      const auto& node = static_cast<const ItemExpr&>(expr);
      const Value object = eval(*node.object);
      return get_item(runtime_, object, eval(*node.key));
    }
    case ExprKind::slice:
      return eval_slice(static_cast<const SliceExpr&>(expr));
    case ExprKind::call:
      return eval_call(static_cast<const CallExpr&>(expr), nullptr);
    case ExprKind::filter:
    case ExprKind::test: {
      const auto& node = static_cast<const NativeExpr&>(expr);
      return eval_native(node, eval(*node.object));
    }
    case ExprKind::negate:
      return negate(eval(*static_cast<const UnaryExpr&>(expr).operand));
    case ExprKind::positive:
      return positive(eval(*static_cast<const UnaryExpr&>(expr).operand));
    case ExprKind::not_:
      return Value::boolean(!truthy(eval(*static_cast<const UnaryExpr&>(expr).operand)));
    case ExprKind::and_:
    case ExprKind::or_: {
      const auto& node = static_cast<const BinaryExpr&>(expr);
      Value left = eval(*node.left);
      return truthy(left) == (expr.kind == ExprKind::or_) ? left : eval(*node.right);
    }
    case ExprKind::binary: {
      const auto& node = static_cast<const BinaryExpr&>(expr);
      const Value left = eval(*node.left);
      return arithmetic(runtime_, node.op, left, eval(*node.right));
    }
    case ExprKind::compare:
      return eval_compare(static_cast<const CompareExpr&>(expr));
    case ExprKind::concat:
      return eval_concat(static_cast<const ItemsExpr&>(expr));
    case ExprKind::conditional:
      return eval_conditional(static_cast<const ConditionalExpr&>(expr));
  }
  return {};
}

Value Evaluator::look_up(int name) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get())
    for (const auto& [key, value] : scope->variables)
      if (key == name) return value;
  const auto place = static_cast<size_t>(name);
  if (const NamedNative* global = globals_[place])
    return Value(runtime_.make<Function>(global->name, global->native));
  return runtime_.undefined(fmt::format("'{}' is undefined", program_.names[place]));
}

std::vector<Value> Evaluator::eval_all(const std::vector<ExprPtr>& items) {
  std::vector<Value> values;
  values.reserve(items.size());
  for (const ExprPtr& item : items) values.push_back(eval(*item));
  return values;
}

Value Evaluator::eval_dict(const ItemsExpr& expr) {
  Dict dict;
  for (size_t i = 0; i < expr.items.size(); i += 2) {
    const Value key = eval(*expr.items[i]);
    dict_set(runtime_, dict, key, eval(*expr.items[i + 1]));
  }
  return runtime_.dict(std::move(dict));
}

Value Evaluator::eval_slice(const SliceExpr& expr) {
  const Value object = eval(*expr.object);
  const Value start = expr.start ? eval(*expr.start) : Value();
  const Value stop = expr.stop ? eval(*expr.stop) : Value();
  const Value step = expr.step ? eval(*expr.step) : Value();
  return get_slice(runtime_, object, start, stop, step);
}

Args Evaluator::eval_arguments(const Arguments& arguments) {
  Args args;
  args.positional = eval_all(arguments.positional);
  for (const auto& [name, value] : arguments.named) args.named.emplace_back(name, eval(*value));
  if (arguments.star) {
    const auto items = items_of(runtime_, eval(*arguments.star));
    args.positional.insert(args.positional.end(), items->items.begin(), items->items.end());
    runtime_.charge(static_cast<int64_t>(items->items.size()));
  }
  if (arguments.double_star) {
    const Value mapping = eval(*arguments.double_star);
    if (!mapping.is_dict()) fail("the argument after ** must be a mapping, not {}", type_name(mapping));
    for (const auto& [key, value] : mapping.as_dict().items) {
      if (!key.is_string()) fail("keywords must be strings");
      runtime_.charge(1 + static_cast<int64_t>(args.named.size() / 8));
      for (const auto& [name, old] : args.named)
        if (name == key.text()) fail("got multiple values for the keyword argument '{}'", name);
      args.named.emplace_back(key.text(), value);
    }
  }
  return args;
}

Value Evaluator::eval_call(const CallExpr& expr, Object* caller) {
  // A method is called straight, without an object for the bound method.
  const bool dotted = expr.callee->kind == ExprKind::attribute;
  const auto* attribute = dotted ? static_cast<const AttributeExpr*>(expr.callee.get()) : nullptr;
  const Value target = eval(dotted ? *attribute->object : *expr.callee);
  const NamedNative* method = dotted ? find_method(target, attribute->name) : nullptr;
  const Value callee =
      method != nullptr || !dotted ? target : get_attribute(runtime_, target, attribute->name);
  Args args = eval_arguments(expr.arguments);
  if (caller != nullptr) args.named.emplace_back("caller", Value(caller));
  line_ = expr.line;
  return method != nullptr ? method->native(runtime_, target, args) : call(runtime_, callee, args);
}

Value Evaluator::eval_native(const NativeExpr& expr, const Value& input) {
  if (expr.native == nullptr)
    fail("no {} named '{}'", expr.kind == ExprKind::filter ? "filter" : "test", expr.name);
  const Args args = eval_arguments(expr.arguments);
  line_ = expr.line;
  return expr.native->native(runtime_, input, args);
}

Value Evaluator::eval_filters(const Expr& chain, const Value& input) {
  runtime_.check_stack();
  const auto& node = static_cast<const NativeExpr&>(chain);
  return eval_native(node, node.object ? eval_filters(*node.object, input) : input);
}

Value Evaluator::eval_compare(const CompareExpr& expr) {
  Value left = eval(*expr.items[0]);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = eval(*expr.items[i + 1]);
    bool holds = false;
    switch (expr.ops[i]) {
      case CompareOp::eq:
        holds = equals(runtime_, left, right);
        break;
      case CompareOp::ne:
        holds = !equals(runtime_, left, right);
        break;
      case CompareOp::lt:
        holds = compare(runtime_, left, right, "<") == -1;
        break;
      case CompareOp::le:
        holds = compare(runtime_, left, right, "<=") <= 0;
        break;
      case CompareOp::gt:
        holds = compare(runtime_, left, right, ">") == 1;
        break;
      case CompareOp::ge: {
        const int order = compare(runtime_, left, right, ">=");
        holds = order == 0 || order == 1;
        break;
      }
      case CompareOp::in:
        holds = contains(runtime_, right, left);
        break;
      case CompareOp::not_in:
        holds = !contains(runtime_, right, left);
        break;
    }
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Evaluator::eval_concat(const ItemsExpr& expr) {
  std::string text;
  for (const ExprPtr& item : expr.items) {
    text += to_str(runtime_, eval(*item));
    Runtime::check_size(static_cast<int64_t>(text.size()));
  }
  return runtime_.string(std::move(text));
}

Value Evaluator::eval_conditional(const ConditionalExpr& expr) {
  if (truthy(eval(*expr.condition))) return eval(*expr.then);
  if (expr.otherwise) return eval(*expr.otherwise);
  return runtime_.undefined(fmt::format(
      "the inline if-expression on line {} evaluated to false and no else section was defined", expr.line));
}

}  // namespace atom::jinja
