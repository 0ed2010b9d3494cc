// Builds the syntax tree of a template.
#pragma once
#include <memory>
#include <string_view>

#include "text/jinja_ast.h"

namespace atom::jinja {

inline constexpr int64_t kMaxSourceBytes = 4 << 20;
inline constexpr int kMaxNesting = 200;  // of expressions, and of blocks, each

// Throws TemplateError that begins with "line N: ".
std::unique_ptr<const Program> parse(std::string_view source);

}  // namespace atom::jinja
