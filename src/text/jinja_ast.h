// The syntax tree of a template. It is immutable once parsed, so any number of threads may render it.
#pragma once
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "text/jinja_objects.h"
#include "text/jinja_value.h"

namespace atom::jinja {

// ---- expressions ----

enum class ExprKind {
  constant,
  name,
  list,
  tuple,
  dict,
  attribute,
  item,
  slice,
  call,
  filter,
  test,
  negate,
  positive,
  not_,
  and_,
  or_,
  binary,
  compare,
  concat,
  conditional
};

struct Expr {
  Expr(ExprKind kind, int line) : kind(kind), line(line) {}
  virtual ~Expr() = default;
  ExprKind kind;
  int line;
  int depth = 1;  // nodes on the deepest way down, itself included
};
using ExprPtr = std::unique_ptr<Expr>;

struct ConstantExpr : Expr {
  ConstantExpr(Value value, int line) : Expr(ExprKind::constant, line), value(std::move(value)) {}
  Value value;
};
struct NameExpr : Expr {
  NameExpr(int name, int line) : Expr(ExprKind::name, line), name(name) {}
  int name;  // index into Program::names
};
// A list, tuple, dict (keys and values in turn), concatenation (~) or comparison chain.
struct ItemsExpr : Expr {
  using Expr::Expr;
  std::vector<ExprPtr> items;
};
struct AttributeExpr : Expr {
  AttributeExpr(int line) : Expr(ExprKind::attribute, line) {}
  ExprPtr object;
  std::string name;
};
struct ItemExpr : Expr {
  ItemExpr(int line) : Expr(ExprKind::item, line) {}
  ExprPtr object, key;
};
struct SliceExpr : Expr {
  SliceExpr(int line) : Expr(ExprKind::slice, line) {}
  ExprPtr object, start, stop, step;  // the last three may be null
};
struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star, double_star;  // may be null
};
struct CallExpr : Expr {
  CallExpr(int line) : Expr(ExprKind::call, line) {}
  ExprPtr callee;
  Arguments arguments;
};
// object|name(arguments) or object is name(arguments); `object` is null in the chain of a filter block.
struct NativeExpr : Expr {
  using Expr::Expr;
  ExprPtr object;
  std::string name;
  const NamedNative* native = nullptr;  // null: unknown, in a branch that may never run
  Arguments arguments;
};
struct UnaryExpr : Expr {
  using Expr::Expr;
  ExprPtr operand;
};
struct BinaryExpr : Expr {  // and_, or_ and binary
  using Expr::Expr;
  ExprPtr left, right;
  BinaryOp op = BinaryOp::add;
};
enum class CompareOp { eq, ne, lt, le, gt, ge, in, not_in };
struct CompareExpr : ItemsExpr {
  CompareExpr(int line) : ItemsExpr(ExprKind::compare, line) {}
  std::vector<CompareOp> ops;  // one fewer than items
};
struct ConditionalExpr : Expr {
  ConditionalExpr(int line) : Expr(ExprKind::conditional, line) {}
  ExprPtr condition, then, otherwise;  // otherwise may be null
};

// ---- statements ----

enum class StmtKind {
  text,
  print,
  if_,
  for_,
  set,
  set_block,
  macro,
  call_block,
  filter_block,
  with,
  scope,
  break_,
  continue_
};

struct Stmt {
  Stmt(StmtKind kind, int line) : kind(kind), line(line) {}
  virtual ~Stmt() = default;
  StmtKind kind;
  int line;
};
using Body = std::vector<std::unique_ptr<Stmt>>;

// What an assignment writes to: a name, an attribute of a namespace, or several of them.
struct Target {
  int name = -1;          // of the variable, or of the namespace
  std::string attribute;  // of the namespace, else empty
  bool unpacks = false;   // into `parts`
  std::vector<Target> parts;
};

struct TextStmt : Stmt {
  TextStmt(std::string text, int line) : Stmt(StmtKind::text, line), text(std::move(text)) {}
  std::string text;
};
struct PrintStmt : Stmt {
  PrintStmt(ExprPtr value, int line) : Stmt(StmtKind::print, line), value(std::move(value)) {}
  ExprPtr value;
};
struct IfStmt : Stmt {
  IfStmt(int line) : Stmt(StmtKind::if_, line) {}
  std::vector<std::pair<ExprPtr, Body>> branches;
  Body otherwise;
};
struct ForStmt : Stmt {
  ForStmt(int line) : Stmt(StmtKind::for_, line) {}
  Target target;
  ExprPtr items, condition;  // condition may be null
  bool recursive = false;
  bool uses_loop = false;  // the body mentions `loop`
  Body body, otherwise;
};
struct SetStmt : Stmt {
  SetStmt(int line) : Stmt(StmtKind::set, line) {}
  Target target;
  ExprPtr value;
};
struct SetBlockStmt : Stmt {
  SetBlockStmt(int line) : Stmt(StmtKind::set_block, line) {}
  Target target;
  ExprPtr filter;  // null, or a chain of filters whose innermost object is null
  Body body;
};
// The signature and body of a macro or of a call block.
struct MacroDefinition {
  std::string name;
  std::vector<int> parameters;
  std::vector<ExprPtr> defaults;  // of the last parameters
  bool uses_caller = false, uses_kwargs = false, uses_varargs = false;
  Body body;
};
struct MacroStmt : Stmt {
  MacroStmt(int line) : Stmt(StmtKind::macro, line) {}
  int name = -1;
  MacroDefinition definition;
};
struct CallBlockStmt : Stmt {
  CallBlockStmt(int line) : Stmt(StmtKind::call_block, line) {}
  std::unique_ptr<CallExpr> call;
  MacroDefinition caller;
};
struct FilterBlockStmt : Stmt {
  FilterBlockStmt(int line) : Stmt(StmtKind::filter_block, line) {}
  ExprPtr filter;
  Body body;
};
struct WithStmt : Stmt {
  WithStmt(int line) : Stmt(StmtKind::with, line) {}
  std::vector<std::pair<Target, ExprPtr>> values;
  Body body;
};
struct ScopeStmt : Stmt {  // {% generation %}
  ScopeStmt(int line) : Stmt(StmtKind::scope, line) {}
  Body body;
};

// A parsed template.
struct Program {
  std::vector<std::string> names;                         // every variable that the template mentions
  std::set<std::string, std::less<>> read;                // those that expressions read
  std::set<std::string, std::less<>> texts;               // constants of expressions
  int loop = -1, caller = -1, kwargs = -1, varargs = -1;  // places of the special names
  Body body;
};

}  // namespace atom::jinja
