// The half of the parser that reads statements.
#include "text/jinja_parser.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "base/text_util.h"
#include "text/jinja_expression_parser.h"

namespace atom::jinja {
namespace {

using Names = std::vector<std::string_view>;

class Parser : ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  std::unique_ptr<const Program> run() {
    auto program = std::make_unique<Program>();
    program->loop = loop_ = intern("loop");
    program->caller = intern("caller");
    program->kwargs = intern("kwargs");
    program->varargs = intern("varargs");
    program->body = parse_body({});
    program->names = std::move(names_);
    program->read = std::move(read_);
    program->texts = std::move(texts_);
    return program;
  }

 private:
  // Statements up to the tag of one of `ends`, whose name is then next; up to the end of the template without
  // ends.
  Body parse_body(const Names& ends) {
    if (static_cast<int>(open_.size()) > kMaxNesting || guard_.exhausted())
      fail("line {}: blocks are nested too deeply", peek().line);
    Body body;
    for (;;) {
      const Token& token = take();
      switch (token.kind) {
        case TokenKind::data:
          body.push_back(std::make_unique<TextStmt>(token.text, token.line));
          break;
        case TokenKind::print_begin:
          body.push_back(std::make_unique<PrintStmt>(parse_tuple(true), token.line));
          if (peek().kind != TokenKind::print_end) fail_here("expected the end of the print statement");
          take();
          break;
        case TokenKind::block_begin:
          if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return at_name(end); }))
            return body;
          body.push_back(parse_statement());
          end_block();
          break;
        default:
          if (ends.empty()) return body;
          fail("line {}: unexpected end of template: '{}' of line {} needs '{}'", token.line,
               open_.back().first, open_.back().second, fmt::join(ends, "' or '"));
      }
    }
  }

  void end_block() {
    if (peek().kind != TokenKind::block_end) fail_here("expected the end of the statement block");
    take();
  }

  // The rest of the opening tag's end, the body, and the closing tag's name.
  Body parse_block(const Names& ends) {
    end_block();
    return parse_body(ends);
  }
  Body parse_block_until(std::string_view end) {
    Body body = parse_block({end});
    take();
    return body;
  }

  std::unique_ptr<Stmt> parse_statement() {
    if (peek().kind != TokenKind::name) fail_here("expected the name of a tag");
    const Token& token = take();
    open_.emplace_back(token.text, token.line);
    auto statement = parse_tag(token.text, token.line);
    open_.pop_back();
    return statement;
  }

  std::unique_ptr<Stmt> parse_tag(const std::string& tag, int line) {
    if (tag == "if") return parse_if(line);
    if (tag == "for") return parse_for(line);
    if (tag == "set") return parse_set(line);
    if (tag == "macro") return parse_macro(line);
    if (tag == "call") return parse_call_block(line);
    if (tag == "filter") return parse_filter_block(line);
    if (tag == "with") return parse_with(line);
    if (tag == "print") return std::make_unique<PrintStmt>(parse_tuple(true), line);
    if (tag == "generation") return parse_generation(line);
    if (tag == "break" || tag == "continue") {
      if (loop_depth_ == 0) fail("line {}: '{}' outside of a loop", line, tag);
      return std::make_unique<Stmt>(tag == "break" ? StmtKind::break_ : StmtKind::continue_, line);
    }
    static const std::set<std::string_view> kRefused = {"include", "import",     "from",  "extends", "block",
                                                        "do",      "autoescape", "trans", "debug"};
    if (kRefused.count(tag) > 0) fail("line {}: the tag '{}' is not supported in chat templates", line, tag);
    fail("line {}: unknown tag '{}'{}", line, tag, open_hint());
  }

  std::string open_hint() const {
    if (open_.size() < 2) return "";
    const auto& [name, line] = open_[open_.size() - 2];
    return fmt::format("; the innermost open block is '{}' of line {}", name, line);
  }

  std::unique_ptr<Stmt> parse_if(int line) {
    auto node = std::make_unique<IfStmt>(line);
    ++uncertain_;
    for (;;) {
      ExprPtr condition = parse_tuple(false);
      Body body = parse_block({"elif", "else", "endif"});
      node->branches.emplace_back(std::move(condition), std::move(body));
      const std::string& end = take().text;
      if (end == "elif") continue;
      if (end == "else") node->otherwise = parse_block_until("endif");
      --uncertain_;
      return node;
    }
  }

  std::unique_ptr<Stmt> parse_for(int line) {
    auto node = std::make_unique<ForStmt>(line);
    node->target = parse_target(false, "in");
    if (mentions_loop(node->target)) fail("line {}: the loop variable must not be named 'loop'", line);
    if (!skip_name("in")) fail_here("expected 'in'");
    node->items = parse_tuple(false, "recursive");
    if (skip_name("if")) node->condition = parse_expression();
    node->recursive = skip_name("recursive");
    node->uses_loop = node->recursive;
    loops_.push_back(node.get());
    ++loop_depth_;
    node->body = parse_block({"else", "endfor"});
    --loop_depth_;
    loops_.pop_back();
    if (take().text == "else") node->otherwise = parse_block_until("endfor");
    return node;
  }

  bool mentions_loop(const Target& target) const {
    return (!target.unpacks && target.attribute.empty() && target.name == loop_) ||
           std::any_of(target.parts.begin(), target.parts.end(),
                       [this](const Target& t) { return mentions_loop(t); });
  }

  std::unique_ptr<Stmt> parse_set(int line) {
    Target target = parse_target(true, {});
    if (skip_op("=")) {
      auto node = std::make_unique<SetStmt>(line);
      node->target = std::move(target);
      node->value = parse_tuple(true);
      return node;
    }
    auto node = std::make_unique<SetBlockStmt>(line);
    node->target = std::move(target);
    node->filter = parse_filters(nullptr, false);
    node->body = parse_block_until("endset");
    return node;
  }

  std::unique_ptr<Stmt> parse_macro(int line) {
    auto node = std::make_unique<MacroStmt>(line);
    node->definition.name = expect_name().text;
    node->name = intern(node->definition.name);
    parse_signature(node->definition);
    parse_macro_body(node->definition, "endmacro");
    return node;
  }

  std::unique_ptr<Stmt> parse_call_block(int line) {
    auto node = std::make_unique<CallBlockStmt>(line);
    node->caller.name = "caller";
    if (at_op("(")) parse_signature(node->caller);
    ExprPtr call = parse_expression();
    if (call->kind != ExprKind::call) fail("line {}: expected a call after 'call'", line);
    node->call.reset(static_cast<CallExpr*>(call.release()));
    parse_macro_body(node->caller, "endcall");
    return node;
  }

  void parse_signature(MacroDefinition& macro) {
    expect_op("(");
    while (!at_op(")")) {
      const Token& name = expect_name();
      if (is_constant(name.text)) fail("line {}: a parameter must not be named '{}'", name.line, name.text);
      macro.parameters.push_back(intern(name.text));
      if (skip_op("=")) {
        macro.defaults.push_back(parse_expression());
      } else if (!macro.defaults.empty()) {
        fail("line {}: a parameter without default follows one with a default", name.line);
      }
      if (!at_op(")")) expect_op(",");
    }
    take();
  }

  void parse_macro_body(MacroDefinition& macro, std::string_view end) {
    const int outer_loops = std::exchange(loop_depth_, 0);  // break does not reach out of a macro
    macros_.push_back(&macro);
    macro.body = parse_block_until(end);
    macros_.pop_back();
    loop_depth_ = outer_loops;
  }

  std::unique_ptr<Stmt> parse_filter_block(int line) {
    auto node = std::make_unique<FilterBlockStmt>(line);
    node->filter = parse_filters(nullptr, true);
    node->body = parse_block_until("endfilter");
    return node;
  }

  std::unique_ptr<Stmt> parse_with(int line) {
    auto node = std::make_unique<WithStmt>(line);
    while (peek().kind != TokenKind::block_end) {
      if (!node->values.empty()) expect_op(",");
      Target target = parse_single_target(false);
      expect_op("=");
      node->values.emplace_back(std::move(target), parse_expression());
    }
    node->body = parse_block_until("endwith");
    return node;
  }

  // Marks what the model said, for training; here it is only a scope.
  std::unique_ptr<Stmt> parse_generation(int line) {
    auto node = std::make_unique<ScopeStmt>(line);
    const int outer_loops = std::exchange(loop_depth_, 0);
    node->body = parse_block_until("endgeneration");
    loop_depth_ = outer_loops;
    return node;
  }

  // ---- targets ----

  static bool is_constant(std::string_view name) {
    static const std::set<std::string_view> kConstants = {"true", "false", "none", "True", "False", "None"};
    return kConstants.count(name) > 0;
  }

  // a, or a, b, or (a, b), c; with `attributes` also ns.a. Ends before the name `stop`.
  Target parse_target(bool attributes, std::string_view stop, int depth = 0) {
    if (depth > kMaxNesting || guard_.exhausted()) fail_here("a target is nested too deeply");
    Target target;
    bool comma = false;
    const auto ends = [&] {
      return at_op("=") || at_op(")") || at_op("|") || peek().kind == TokenKind::block_end ||
             (!stop.empty() && at_name(stop));
    };
    while (!ends()) {
      target.parts.push_back(parse_single_target(attributes, depth));
      if (!skip_op(",")) break;
      comma = true;
    }
    if (target.parts.empty()) fail_here("expected a name to assign to");
    if (!comma) return Target(std::move(target.parts.front()));
    target.unpacks = true;
    return target;
  }

  Target parse_single_target(bool attributes, int depth = 0) {
    if (skip_op("(")) {
      Target target = parse_target(attributes, {}, depth + 1);
      expect_op(")");
      return target;
    }
    const Token& name = expect_name();
    if (is_constant(name.text)) fail("line {}: cannot assign to '{}'", name.line, name.text);
    Target target;
    target.name = intern(name.text);
    if (attributes && skip_op(".")) target.attribute = expect_name().text;
    if (at_op(".") || at_op("[")) fail_here("only a name or an attribute of a namespace can be assigned to");
    return target;
  }

  std::vector<std::pair<std::string, int>> open_;  // tags whose end is due, with their lines
  int loop_depth_ = 0;                             // loops around, within the macro at hand
  int loop_ = -1;
};

}  // namespace

std::unique_ptr<const Program> parse(std::string_view source) {
  if (static_cast<int64_t>(source.size()) > kMaxSourceBytes)
    fail("line 1: the template is larger than {} MiB", kMaxSourceBytes >> 20);
  if (!is_valid_utf8(source)) fail("line 1: the template is not UTF-8");
  return Parser(tokenize(source)).run();
}

}  // namespace atom::jinja
