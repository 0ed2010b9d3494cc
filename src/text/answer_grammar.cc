// Reasoning, content and calls put together.
#include "text/answer_grammar.h"

#include <optional>

#include "text/ebnf_grammar.h"
#include "text/json_exprs.h"
#include "text/json_schema_grammar.h"
#include "text/marked_text.h"
#include "text/tool_choice.h"
#include "text/tool_grammar.h"

namespace atom::text {
namespace {

using Expr = GrammarBuilder::Expr;
using Kind = ContentForm::Kind;

Result<Expr> content_expr(GrammarBuilder& b, const ContentForm& content) {
  switch (content.kind) {
    case Kind::json_object:
      return JsonExprs(b).object();
    case Kind::json_schema:
      return json_schema_expr(b, JsonExprs(b), content.schema, content.schema);
    case Kind::regex:
      return regex_expr(b, content.source);
    case Kind::ebnf:
      return ebnf_expr(b, content.source);
    case Kind::any:
      break;
  }
  return text_through(b, "", {});
}

class AnswerCompiler {
 public:
  AnswerCompiler(const FormatChoice& format, const AnswerForm& form, const std::vector<std::string>& specials)
      : format_(format), form_(form), specials_(specials) {}

  Result<std::shared_ptr<const Grammar>> run() {
    std::vector<Expr> answers;
    if (!form_.tools.empty() || form_.must_call) {
      const Result<Expr> call = call_expr(b_, format_, form_.tools, specials_);
      if (!call.ok()) return call.error();
      if (form_.must_call || form_.content.kind != Kind::any) {
        answers.push_back(call.value());
      } else if (const std::optional<Error> error = add_call_behind_text(call.value(), answers)) {
        return *error;
      }
    }
    if (!form_.must_call) {
      const Result<Expr> content = content_expr(b_, form_.content);
      if (!content.ok()) return content.error();
      const bool text = form_.content.kind == Kind::any;
      answers.push_back(with_header(text ? text_through(b_, "", call_marks_) : content.value()));
    }
    const Expr answer = b_.call(b_.rule("answer", b_.choice(std::move(answers))));
    return b_.compile(b_.rule("root", behind_reasoning(answer)));
  }

 private:
  Expr mark(std::string_view text) { return b_.literal(spell_specials(text, specials_)); }

  // Text, and a call where its mark first stands in the text.
  std::optional<Error> add_call_behind_text(Expr call, std::vector<Expr>& answers) {
    if (format_.tools == ResponseFormat::harmony) {  // a message of its own
      const Expr text = b_.concat({with_header(text_through(b_, "", {})), mark("<|end|><|start|>assistant")});
      answers.push_back(b_.concat({b_.repeat(text, 0), call}));
      return std::nullopt;
    }
    const std::vector<std::string> marks = call_marks(format_.tools);
    if (marks.empty()) {
      return invalid(
          "tools: calls of this model cannot be told from text; a strict tool needs a tool_choice");
    }
    for (const std::string& mark : marks) call_marks_.push_back(spell_specials(mark, specials_));
    // The mark is the call's own beginning.
    answers.push_back(b_.concat({text_through(b_, "", call_marks_), call}));
    return std::nullopt;
  }

  Expr with_header(Expr content) {
    if (format_.tools != ResponseFormat::harmony) return content;
    return b_.concat({mark("<|channel|>final<|message|>"), content});
  }

  Expr behind_reasoning(Expr answer) {
    if (format_.tools == ResponseFormat::harmony) {
      const Expr rest = b_.concat({text_through(b_, "", {}), mark("<|end|><|start|>assistant")});
      const Expr message = b_.concat({mark("<|channel|>analysis<|message|>"), rest});
      return b_.concat({form_.in_reasoning ? rest : b_.empty(), b_.repeat(message, 0), answer});
    }
    if (format_.reasoning == ReasoningFormat::none || form_.reasoned) return answer;
    const bool mistral = format_.reasoning == ReasoningFormat::mistral_think;
    const std::string close = spell_specials(mistral ? "[/THINK]" : "</think>", specials_);
    std::vector<std::string> without;  // the parser takes some for the end of reasoning
    for (const std::string& text : call_marks(format_.tools))
      without.push_back(spell_specials(text, specials_));
    const Expr rest =
        b_.concat({text_through(b_, close, without), b_.repeat(b_.literal("\n"), 0, 2), answer});
    if (form_.in_reasoning) return rest;
    return b_.choice({answer, b_.concat({mark(mistral ? "[THINK]" : "<think>"), rest})});
  }

  const FormatChoice& format_;
  const AnswerForm& form_;
  const std::vector<std::string>& specials_;
  GrammarBuilder b_;
  std::vector<std::string> call_marks_;  // that text must not contain
};

}  // namespace

Result<std::shared_ptr<const Grammar>> content_grammar(const ContentForm& content) {
  GrammarBuilder builder;
  const Result<Expr> body = content_expr(builder, content);
  if (!body.ok()) return body.error();
  return builder.compile(builder.rule("root", body.value()));
}

Result<std::shared_ptr<const Grammar>> answer_grammar(const FormatChoice& format, const AnswerForm& form,
                                                      const std::vector<std::string>& specials) {
  return AnswerCompiler(format, form, specials).run();
}

}  // namespace atom::text
