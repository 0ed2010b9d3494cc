// Precedence climbing over the tokens of one tag.
#include "text/jinja_expression_parser.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

namespace atom::jinja {
namespace {

enum Precedence { kOr = 1, kAnd, kNot, kCompare, kSum, kConcat, kProduct, kPower, kOperand };

// What an operator token binds by; 0 for what is no binary operator.
int precedence_of(const Token& token) {
  if (token.kind == TokenKind::name) {
    if (token.text == "or") return kOr;
    if (token.text == "and") return kAnd;
    return token.text == "in" ? kCompare : 0;
  }
  if (token.kind != TokenKind::op) return 0;
  const std::string_view op = token.text;
  if (op == "==" || op == "!=" || op == "<" || op == "<=" || op == ">" || op == ">=") return kCompare;
  if (op == "+" || op == "-") return kSum;
  if (op == "~") return kConcat;
  if (op == "*" || op == "/" || op == "//" || op == "%") return kProduct;
  return op == "**" ? kPower : 0;
}

BinaryOp binary_op(std::string_view op) {
  if (op == "+") return BinaryOp::add;
  if (op == "-") return BinaryOp::sub;
  if (op == "*") return BinaryOp::mul;
  if (op == "/") return BinaryOp::div;
  if (op == "//") return BinaryOp::floor_div;
  return op == "%" ? BinaryOp::mod : BinaryOp::pow;
}

CompareOp compare_op(std::string_view op) {
  if (op == "==") return CompareOp::eq;
  if (op == "!=") return CompareOp::ne;
  if (op == "<") return CompareOp::lt;
  if (op == "<=") return CompareOp::le;
  if (op == ">") return CompareOp::gt;
  return op == ">=" ? CompareOp::ge : CompareOp::in;
}

}  // namespace

// ---- tokens ----

const Token& ExpressionParser::peek(size_t ahead) const {
  return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
}

const Token& ExpressionParser::take() {
  const Token& token = peek();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool ExpressionParser::skip_op(std::string_view op) {
  const bool found = at_op(op);
  if (found) take();
  return found;
}

bool ExpressionParser::skip_name(std::string_view name) {
  const bool found = at_name(name);
  if (found) take();
  return found;
}

void ExpressionParser::expect_op(std::string_view op) {
  if (!skip_op(op)) fail_here(fmt::format("expected '{}'", op));
}

const Token& ExpressionParser::expect_name() {
  if (peek().kind != TokenKind::name) fail_here("expected a name");
  return take();
}

void ExpressionParser::fail_here(std::string_view message) const {
  const Token& token = peek();
  switch (token.kind) {
    case TokenKind::end:
      fail("line {}: {}, but the template ends", token.line, message);
    case TokenKind::print_end:
      fail("line {}: {}, got the end of the print statement", token.line, message);
    case TokenKind::block_end:
      fail("line {}: {}, got the end of the statement block", token.line, message);
    default:
      fail("line {}: {}, got '{}'", token.line, message, token.text);
  }
}

int ExpressionParser::intern(std::string_view name) {
  const auto [place, added] = name_index_.emplace(name, static_cast<int>(names_.size()));
  if (added) names_.emplace_back(name);
  return place->second;
}

// ---- depth ----

ExprPtr ExpressionParser::finish(ExprPtr node, std::initializer_list<const Expr*> children) const {
  for (const Expr* child : children)
    if (child != nullptr) node->depth = std::max(node->depth, child->depth + 1);
  if (node->depth > kMaxNesting)
    fail("line {}: an expression is nested more than {} deep", node->line, kMaxNesting);
  return node;
}

ExprPtr ExpressionParser::finish(std::unique_ptr<ItemsExpr> node) const {
  for (const ExprPtr& item : node->items) node->depth = std::max(node->depth, item->depth + 1);
  return finish(std::move(node), {});
}

int ExpressionParser::depth_of(const Arguments& arguments) const {
  int depth = 1;
  for (const ExprPtr& value : arguments.positional) depth = std::max(depth, value->depth + 1);
  for (const auto& [name, value] : arguments.named) depth = std::max(depth, value->depth + 1);
  if (arguments.star) depth = std::max(depth, arguments.star->depth + 1);
  if (arguments.double_star) depth = std::max(depth, arguments.double_star->depth + 1);
  return depth;
}

// ---- operators ----

bool ExpressionParser::ends_tuple(std::string_view stop) const {
  const TokenKind kind = peek().kind;
  return kind == TokenKind::print_end || kind == TokenKind::block_end || at_op(")") ||
         (!stop.empty() && at_name(stop));
}

ExprPtr ExpressionParser::parse_tuple(bool with_condition, std::string_view stop, bool may_be_empty) {
  const int line = peek().line;
  auto tuple = std::make_unique<ItemsExpr>(ExprKind::tuple, line);
  bool comma = false;
  while (!ends_tuple(stop)) {
    tuple->items.push_back(with_condition ? parse_expression() : parse_binary(kOr));
    if (!at_op(",")) break;
    take();
    comma = true;
  }
  if (!comma && !tuple->items.empty()) return std::move(tuple->items.front());
  if (tuple->items.empty() && !may_be_empty) fail_here("expected an expression");
  return finish(std::move(tuple));
}

ExprPtr ExpressionParser::parse_expression() {
  if (guard_.exhausted()) fail("line {}: an expression is nested too deeply", peek().line);
  const int line = peek().line;
  ExprPtr value = parse_binary(kOr);
  while (skip_name("if")) {
    auto node = std::make_unique<ConditionalExpr>(line);
    ++uncertain_;
    node->then = std::move(value);
    node->condition = parse_binary(kOr);
    if (skip_name("else")) node->otherwise = parse_expression();
    --uncertain_;
    const Expr *then = node->then.get(), *condition = node->condition.get(),
               *otherwise = node->otherwise.get();
    value = finish(std::move(node), {then, condition, otherwise});
  }
  return value;
}

ExprPtr ExpressionParser::parse_binary(int lowest) {
  if (guard_.exhausted()) fail("line {}: an expression is nested too deeply", peek().line);
  ExprPtr left = parse_prefix(lowest);
  for (;;) {
    const Token& token = peek();
    const bool not_in = at_name("not") && peek(1).is(TokenKind::name, "in");
    const int precedence = not_in ? static_cast<int>(kCompare) : precedence_of(token);
    if (precedence == 0 || precedence < lowest) return left;
    if (precedence == kCompare) {
      left = parse_compare(std::move(left));
    } else if (precedence == kConcat) {
      left = parse_concat(std::move(left));
    } else {
      const ExprKind kind = precedence == kOr    ? ExprKind::or_
                            : precedence == kAnd ? ExprKind::and_
                                                 : ExprKind::binary;
      auto node = std::make_unique<BinaryExpr>(kind, token.line);
      if (kind == ExprKind::binary) node->op = binary_op(token.text);
      take();
      node->left = std::move(left);
      node->right = parse_binary(precedence + 1);
      const Expr *a = node->left.get(), *b = node->right.get();
      left = finish(std::move(node), {a, b});
    }
  }
}

ExprPtr ExpressionParser::parse_prefix(int lowest) {
  if (lowest > kNot || !at_name("not")) return parse_unary(true);
  auto node = std::make_unique<UnaryExpr>(ExprKind::not_, take().line);
  node->operand = parse_binary(kNot);
  const Expr* operand = node->operand.get();
  return finish(std::move(node), {operand});
}

ExprPtr ExpressionParser::parse_compare(ExprPtr first) {
  auto node = std::make_unique<CompareExpr>(peek().line);
  node->items.push_back(std::move(first));
  for (;;) {
    if (at_name("not") && peek(1).is(TokenKind::name, "in")) {
      take();
      take();
      node->ops.push_back(CompareOp::not_in);
    } else if (precedence_of(peek()) == kCompare) {
      node->ops.push_back(compare_op(take().text));
    } else {
      return finish(std::move(node));
    }
    node->items.push_back(parse_binary(kCompare + 1));
  }
}

ExprPtr ExpressionParser::parse_concat(ExprPtr first) {
  auto node = std::make_unique<ItemsExpr>(ExprKind::concat, peek().line);
  node->items.push_back(std::move(first));
  while (skip_op("~")) node->items.push_back(parse_binary(kConcat + 1));
  return finish(std::move(node));
}

ExprPtr ExpressionParser::parse_unary(bool with_filters) {
  if (guard_.exhausted()) fail("line {}: an expression is nested too deeply", peek().line);
  ExprPtr value;
  if (at_op("-") || at_op("+")) {
    const Token& sign = take();
    auto node =
        std::make_unique<UnaryExpr>(sign.text == "-" ? ExprKind::negate : ExprKind::positive, sign.line);
    node->operand = parse_unary(false);
    const Expr* operand = node->operand.get();
    value = finish(std::move(node), {operand});
  } else {
    value = parse_primary();
  }
  value = parse_postfix(std::move(value));
  return with_filters ? parse_filters_and_tests(std::move(value)) : std::move(value);
}

// ---- operands ----

ExprPtr ExpressionParser::parse_primary() {
  const Token& token = peek();
  switch (token.kind) {
    case TokenKind::name:
      return parse_name();
    case TokenKind::string: {
      std::string text;
      while (peek().kind == TokenKind::string) text += take().text;
      texts_.insert(text);
      return std::make_unique<ConstantExpr>(Value(make_str(std::move(text))), token.line);
    }
    case TokenKind::integer: {
      const std::string_view text = take().text;
      const bool radix = text.size() > 2 && text[0] == '0' && !(text[1] >= '0' && text[1] <= '9');
      const char letter = radix ? static_cast<char>(text[1] | 0x20) : 'd';
      const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
      Int value = 0;
      for (const char c : text.substr(radix ? 2 : 0)) {
        const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
        if (__builtin_mul_overflow(value, Int{base}, &value) ||
            __builtin_add_overflow(value, Int{digit}, &value))
          fail("line {}: an integer is larger than 128 bits", token.line);
      }
      return std::make_unique<ConstantExpr>(Value::integer(value), token.line);
    }
    case TokenKind::real: {
      const std::string_view text = take().text;
      double value = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error == std::errc::result_out_of_range)
        value = text.find("e-") == text.npos && text.find("E-") == text.npos ? HUGE_VAL : 0.0;
      return std::make_unique<ConstantExpr>(Value::real(value), token.line);
    }
    default:
      break;
  }
  if (skip_op("(")) {
    ExprPtr value = parse_tuple(true, {}, true);
    expect_op(")");
    return value;
  }
  if (at_op("[")) return parse_list();
  if (at_op("{")) return parse_dict();
  fail_here("expected an expression");
}

ExprPtr ExpressionParser::parse_name() {
  const Token& token = take();
  const std::string& name = token.text;
  if (name == "true" || name == "True")
    return std::make_unique<ConstantExpr>(Value::boolean(true), token.line);
  if (name == "false" || name == "False")
    return std::make_unique<ConstantExpr>(Value::boolean(false), token.line);
  if (name == "none" || name == "None") return std::make_unique<ConstantExpr>(Value(), token.line);
  if (name == "loop" && !loops_.empty()) loops_.back()->uses_loop = true;
  for (MacroDefinition* macro : macros_) {
    macro->uses_caller = macro->uses_caller || name == "caller";
    macro->uses_kwargs = macro->uses_kwargs || name == "kwargs";
    macro->uses_varargs = macro->uses_varargs || name == "varargs";
  }
  read_.insert(name);
  return std::make_unique<NameExpr>(intern(name), token.line);
}

ExprPtr ExpressionParser::parse_list() {
  auto node = std::make_unique<ItemsExpr>(ExprKind::list, take().line);
  while (!at_op("]")) {
    node->items.push_back(parse_expression());
    if (!at_op("]")) expect_op(",");
  }
  take();
  return finish(std::move(node));
}

ExprPtr ExpressionParser::parse_dict() {
  auto node = std::make_unique<ItemsExpr>(ExprKind::dict, take().line);
  while (!at_op("}")) {
    node->items.push_back(parse_expression());
    expect_op(":");
    node->items.push_back(parse_expression());
    if (!at_op("}")) expect_op(",");
  }
  take();
  return finish(std::move(node));
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr object) {
  for (;;) {
    if (at_op(".") || at_op("[")) {
      object = parse_subscript(std::move(object));
    } else if (at_op("(")) {
      object = parse_call(std::move(object));
    } else {
      return object;
    }
  }
}

ExprPtr ExpressionParser::parse_subscript(ExprPtr object) {
  const Token& token = take();
  const Expr* base = object.get();
  if (token.text == ".") {
    if (peek().kind == TokenKind::integer) {
      auto node = std::make_unique<ItemExpr>(token.line);
      node->key = parse_primary();
      node->object = std::move(object);
      return finish(std::move(node), {base});
    }
    auto node = std::make_unique<AttributeExpr>(token.line);
    node->name = expect_name().text;
    node->object = std::move(object);
    return finish(std::move(node), {base});
  }
  ExprPtr parts[3];
  int colons = 0;
  while (!at_op("]")) {
    if (at_op(",")) fail_here("several subscripts at once are not supported; expected ']'");
    if (at_op(":")) {
      if (++colons > 2) fail_here("expected ']'");
      take();
    } else {
      if (parts[colons]) fail_here("expected ']'");
      parts[colons] = parse_expression();
    }
  }
  take();
  const Expr *a = parts[0].get(), *b = parts[1].get(), *c = parts[2].get();
  if (colons == 0) {
    if (!parts[0]) fail_here("expected a subscript before this");
    auto node = std::make_unique<ItemExpr>(token.line);
    node->object = std::move(object);
    node->key = std::move(parts[0]);
    return finish(std::move(node), {base, a});
  }
  auto node = std::make_unique<SliceExpr>(token.line);
  node->object = std::move(object);
  node->start = std::move(parts[0]);
  node->stop = std::move(parts[1]);
  node->step = std::move(parts[2]);
  return finish(std::move(node), {base, a, b, c});
}

Arguments ExpressionParser::parse_arguments() {
  Arguments arguments;
  expect_op("(");
  while (!at_op(")")) {
    if (at_op("*")) {
      if (arguments.star || arguments.double_star) fail_here("invalid syntax for function call expression");
      take();
      arguments.star = parse_expression();
    } else if (at_op("**")) {
      if (arguments.double_star) fail_here("invalid syntax for function call expression");
      take();
      arguments.double_star = parse_expression();
    } else if (peek().kind == TokenKind::name && peek(1).is(TokenKind::op, "=")) {
      if (arguments.double_star) fail_here("invalid syntax for function call expression");
      std::string name = take().text;
      take();
      arguments.named.emplace_back(std::move(name), parse_expression());
    } else {
      if (arguments.star || arguments.double_star || !arguments.named.empty())
        fail_here("a positional argument follows a named one");
      arguments.positional.push_back(parse_expression());
    }
    if (!at_op(")")) expect_op(",");
  }
  take();
  return arguments;
}

ExprPtr ExpressionParser::parse_call(ExprPtr callee) {
  auto node = std::make_unique<CallExpr>(peek().line);
  node->arguments = parse_arguments();
  node->depth = depth_of(node->arguments);
  node->callee = std::move(callee);
  const Expr* base = node->callee.get();
  return finish(std::move(node), {base});
}

// ---- filters and tests ----

ExprPtr ExpressionParser::parse_filters_and_tests(ExprPtr object) {
  for (;;) {
    if (at_op("|")) {
      object = parse_filters(std::move(object), false);
    } else if (at_name("is")) {
      object = parse_test(std::move(object));
    } else if (at_op("(")) {
      object = parse_call(std::move(object));
    } else {
      return object;
    }
  }
}

ExprPtr ExpressionParser::parse_filters(ExprPtr object, bool inline_first) {
  while (inline_first || at_op("|")) {
    if (!std::exchange(inline_first, false)) take();
    auto node = std::make_unique<NativeExpr>(ExprKind::filter, peek().line);
    node->name = expect_name().text;
    while (skip_op(".")) node->name += "." + expect_name().text;
    node->native = find_filter(node->name);
    if (node->native == nullptr && uncertain_ == 0)
      fail("line {}: no filter named '{}'", node->line, node->name);
    if (at_op("(")) node->arguments = parse_arguments();
    node->depth = depth_of(node->arguments);
    node->object = std::move(object);
    const Expr* base = node->object.get();
    object = finish(std::move(node), {base});
  }
  return object;
}

ExprPtr ExpressionParser::parse_test(ExprPtr object) {
  auto node = std::make_unique<NativeExpr>(ExprKind::test, take().line);
  const bool negated = skip_name("not");
  node->name = expect_name().text;
  while (skip_op(".")) node->name += "." + expect_name().text;
  node->native = find_test(node->name);
  if (node->native == nullptr && uncertain_ == 0) fail("line {}: no test named '{}'", node->line, node->name);
  const TokenKind kind = peek().kind;
  const bool value_follows =
      kind == TokenKind::string || kind == TokenKind::integer || kind == TokenKind::real || at_op("[") ||
      at_op("{") || (kind == TokenKind::name && !at_name("else") && !at_name("or") && !at_name("and"));
  if (at_op("(")) {
    node->arguments = parse_arguments();
  } else if (value_follows) {
    if (at_name("is")) fail_here("you cannot chain multiple tests with is");
    node->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  node->depth = depth_of(node->arguments);
  node->object = std::move(object);
  const int line = node->line;
  const Expr* base = node->object.get();
  ExprPtr result = finish(std::move(node), {base});
  if (!negated) return result;
  auto inverse = std::make_unique<UnaryExpr>(ExprKind::not_, line);
  inverse->operand = std::move(result);
  const Expr* operand = inverse->operand.get();
  return finish(std::move(inverse), {operand});
}

}  // namespace atom::jinja
