// Any bytes as the body of any endpoint: a plan, an answer, or an ApiError; nothing else.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "server/chat_api.h"
#include "server/completions_api.h"
#include "server/fields.h"
#include "server/messages_api.h"
#include "server/model_api.h"
#include "server/responses_api.h"
#include "server/test_model.h"

using namespace atom;
using namespace atom::server;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<TextModel> text = test_text_model();
  static const ServedModel model = [] {
    ServedModel with_calls = test_model(*text);
    with_calls.format = {text::ResponseFormat::hermes, text::ReasoningFormat::think, "by hand"};
    return with_calls;
  }();
  static ResponseStore store;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    const Json body = parse_body(bytes);
    switch (data[0] % 7) {
      case 0:
        plan_chat(body, model);
        break;
      case 1:
        plan_completions(body, model);
        break;
      case 2:
        plan_messages(body, model);
        break;
      case 3:
        plan_response(body, model, store, "");
        break;
      case 4:
        count_message_tokens(body, model);
        break;
      case 5:
        tokenize(body, model);
        break;
      case 6:
        detokenize(body, model);
        break;
    }
  } catch (const ApiError& error) {
    (void)error.openai_body().dump();  // throws on ill-formed UTF-8
    (void)error.anthropic_body().dump();
  }
  return 0;
}
