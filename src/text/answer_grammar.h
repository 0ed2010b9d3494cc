// The grammar of a whole answer, where a request fixes the form of its content or of its calls.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "text/grammar.h"
#include "text/response_format.h"
#include "text/response_parser.h"

namespace atom::text {

// What text must be.
struct ContentForm {
  enum class Kind : uint8_t { any, json_object, json_schema, regex, ebnf } kind = Kind::any;
  Json schema;
  std::string source;  // regex, ebnf
};

// What a chat's answer must be, behind its reasoning.
struct AnswerForm {
  ContentForm content;
  std::vector<ToolSchema> tools;  // that may be called; empty: none
  bool must_call = false;         // else content will do as well
  // Of the prompt: it has opened reasoning, or closed it for good.
  bool in_reasoning = false, reasoned = false;
};

// The text itself, as of a completion. `content` must not be any. Error (invalid) as json_schema_grammar.h
// and ebnf_grammar.h have it. Bounded in time and size, as everything that follows.
Result<std::shared_ptr<const Grammar>> content_grammar(const ContentForm& content);

// An answer in the format: reasoning as long as the model wants it, then the content, or exactly one call,
// whose arguments conform to its tool's schema (see tool_grammar.h). Free text is text up to the mark with
// which a call begins. `specials` are those of visible_special_tokens(format) that are special in the
// vocabulary; they stand nowhere but where the format has them. Error (invalid): a schema, regular expression
// or grammar that cannot be compiled; the format has no calls, or no mark at which they begin.
Result<std::shared_ptr<const Grammar>> answer_grammar(const FormatChoice& format, const AnswerForm& form,
                                                      const std::vector<std::string>& specials);

}  // namespace atom::text
