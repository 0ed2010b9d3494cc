// The half of the parser that reads expressions. Precedence, loosest first: if-else, or, and, not,
// comparisons and `in`, + and -, ~, * / // %, **, unary + and -, then postfix, filters and tests.
#pragma once
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"
#include "text/jinja_parser.h"
#include "text/jinja_runtime.h"

namespace atom::jinja {

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // One expression, or a tuple where commas follow. Ends before the name `stop`, if given.
  ExprPtr parse_tuple(bool with_condition, std::string_view stop = {}, bool may_be_empty = false);
  ExprPtr parse_expression();
  ExprPtr parse_binary(int lowest);
  ExprPtr parse_unary(bool with_filters);
  ExprPtr parse_postfix(ExprPtr object);
  // The filters after `|`; with `inline_first` the first stands without one. `object` may be null.
  ExprPtr parse_filters(ExprPtr object, bool inline_first);
  Arguments parse_arguments();

  const Token& peek(size_t ahead = 0) const;
  const Token& take();
  bool at_op(std::string_view op) const { return peek().is(TokenKind::op, op); }
  bool at_name(std::string_view name) const { return peek().is(TokenKind::name, name); }
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  void expect_op(std::string_view op);
  const Token& expect_name();
  int intern(std::string_view name);
  [[noreturn]] void fail_here(std::string_view message) const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  std::vector<std::string> names_;
  std::unordered_map<std::string, int> name_index_;
  std::set<std::string, std::less<>> read_, texts_;  // as in Program
  std::vector<ForStmt*> loops_;           // whose bodies are being read, innermost last
  std::vector<MacroDefinition*> macros_;  // likewise
  int uncertain_ = 0;                     // inside branches, where an unknown filter may never run
  StackGuard guard_;

 private:
  ExprPtr parse_prefix(int lowest);
  ExprPtr parse_primary();
  ExprPtr parse_name();
  ExprPtr parse_list();
  ExprPtr parse_dict();
  ExprPtr parse_compare(ExprPtr first);
  ExprPtr parse_concat(ExprPtr first);
  ExprPtr parse_subscript(ExprPtr object);
  ExprPtr parse_call(ExprPtr callee);
  ExprPtr parse_filters_and_tests(ExprPtr object);
  ExprPtr parse_test(ExprPtr object);
  bool ends_tuple(std::string_view stop) const;
  // Sets the depth of a finished node, and refuses one that is too deep.
  ExprPtr finish(ExprPtr node, std::initializer_list<const Expr*> children) const;
  ExprPtr finish(std::unique_ptr<ItemsExpr> node) const;
  int depth_of(const Arguments& arguments) const;
};

}  // namespace atom::jinja
