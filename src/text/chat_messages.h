// From the messages that a server receives to those that a chat template can take, and to the prompt.
#pragma once
#include <string>

#include "base/json.h"
#include "text/chat_template.h"

namespace atom::text {

// What a template makes of the shapes that clients send.
struct TemplateTraits {
  // Roles whose content may stay a list of parts; for others the parts' texts are joined without a separator.
  bool system_parts = false, user_parts = false, assistant_parts = false, tool_parts = false;
  bool string_arguments = false;  // tool-call arguments must be JSON text; otherwise they are a mapping
  bool null_content_with_calls = false;  // a turn that only calls tools has content none; otherwise ""
};

// Found by rendering small conversations and looking at what comes out (never by the template's name): a
// template handles parts if their text appears without the part's own JSON or repr around it, and takes a
// mapping of arguments if it renders without an error and not as Python's repr. `inputs` gives the special
// tokens and kwargs; its messages are not used. Never throws.
TemplateTraits probe_traits(const ChatTemplate& chat_template, const ChatTemplateInputs& inputs);

// Checks and adapts messages:
// - an array of at least one object, each with a string `role`;
// - missing or null content becomes "" (or none, see TemplateTraits); lists of text parts are joined where
// the
//   template wants a string; parts that are not text (images, audio) are refused, for the models are text
//   models;
// - arguments of tool calls become a mapping, or JSON text, as the template wants; text that is no JSON
// object is
//   refused where a mapping is wanted, and empty text is an empty mapping.
// Everything else is passed on. Throws Error (invalid) that names the place, "messages[2].content[0]: ...".
Json normalize_messages(Json messages, const TemplateTraits& traits);

// Normalises inputs.messages and renders. With continue_final_message the prompt ends with the final
// assistant message's content, for the model to go on with; that excludes add_generation_prompt. Throws Error
// (invalid).
std::string render_prompt(const ChatTemplate& chat_template, const TemplateTraits& traits,
                          ChatTemplateInputs inputs, bool continue_final_message = false);

}  // namespace atom::text
