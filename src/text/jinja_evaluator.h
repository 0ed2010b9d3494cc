// Evaluates expressions in the current scope.
#pragma once
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_runtime.h"
#include "text/jinja_scope.h"

namespace atom::jinja {

class Evaluator {
 protected:
  Evaluator(const Program& program, Runtime& runtime);

  Value eval(const Expr& expr);
  Args eval_arguments(const Arguments& arguments);
  // Calls what `expr` names, with `caller` as one more argument where it is not null.
  Value eval_call(const CallExpr& expr, Object* caller);
  // Applies a chain of filters to `input`, which stands where the chain's innermost object is null.
  Value eval_filters(const Expr& chain, const Value& input);

  const Program& program_;
  Runtime& runtime_;
  ScopePtr scope_;
  int line_ = 1;  // of what runs, for errors

 private:
  Value look_up(int name);
  std::vector<Value> eval_all(const std::vector<ExprPtr>& items);
  Value eval_dict(const ItemsExpr& expr);
  Value eval_slice(const SliceExpr& expr);
  Value eval_native(const NativeExpr& expr, const Value& input);
  Value eval_compare(const CompareExpr& expr);
  Value eval_concat(const ItemsExpr& expr);
  Value eval_conditional(const ConditionalExpr& expr);

  std::vector<const NamedNative*> globals_;  // by the index of the name; null for what is no global function
};

}  // namespace atom::jinja
