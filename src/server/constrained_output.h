// What a request says about the form of its answer, and the grammar that holds the answer to it.
#pragma once
#include <memory>
#include <string>

#include "server/fields.h"
#include "server/served_model.h"
#include "text/answer_grammar.h"

namespace atom::server {

// A form, and the field that asked for it.
struct RequestedContent {
  text::ContentForm form;
  std::string field;
  bool any() const { return form.kind == text::ContentForm::Kind::any; }
};

// `response_format` in the form of OpenAI's chat and `structured_outputs`, of which one may be given:
// {json: SCHEMA}, {json_object: true}, {regex}, {choice: [texts]} or {grammar}.
RequestedContent read_content(Fields& fields);
// {type: text}, {type: json_object} or {type: json_schema, schema}, as OpenAI's responses and Anthropic's
// messages have it.
RequestedContent read_format(const Json& format, const std::string& path);

// Null for any content. Compiles on the caller's thread, unless the model has compiled it before. Throws
// ApiError (400) for what cannot be compiled.
std::shared_ptr<text::GrammarMasks> constrain_text(const RequestedContent& content, const ServedModel& model);
// The same for a chat's answer; `form` holds all but the content. Null if it is free.
std::shared_ptr<text::GrammarMasks> constrain_answer(const RequestedContent& content, text::AnswerForm form,
                                                     const ServedModel& model);

}  // namespace atom::server
