// Runs a parsed template.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_ast.h"
#include "text/jinja_runtime.h"

namespace atom::jinja {

using Variables =
    std::vector<std::pair<std::string, Value>>;  // a later one hides an earlier one of the same name

// The rendered text. The values must come from `runtime`. Throws TemplateError; unless the template itself
// raised, the message begins with "line N: ".
std::string render(const Program& program, Runtime& runtime, const Variables& variables);

}  // namespace atom::jinja
