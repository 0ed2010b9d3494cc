// Splits a template into text and the tokens inside its tags, with the white-space rules of trim_blocks and
// lstrip_blocks already applied to the text.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace atom::jinja {

enum class TokenKind {
  data,  // text between tags, outside of any
  print_begin,
  print_end,  // {{ }}
  block_begin,
  block_end,  // {% %}
  name,
  integer,
  real,
  string,
  op,  // inside tags; a string is already unescaped
  end
};

struct Token {
  TokenKind kind;
  std::string text;
  int line;

  bool is(TokenKind k, std::string_view t) const { return kind == k && text == t; }
};

// The last token is `end`. Throws TemplateError with the line of what cannot be read.
std::vector<Token> tokenize(std::string_view source);

}  // namespace atom::jinja
