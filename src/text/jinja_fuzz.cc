// Fuzzes the template engine. The input is a template, a zero byte, and a JSON object of variables; the last
// two may be absent.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "text/chat_messages.h"
#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  atom::text::ChatTemplateInputs inputs;
  inputs.now = std::tm{};
  atom::jinja::Limits limits;
  limits.steps = 20'000;
  limits.bytes = 8 << 20;
  try {
    if (zero != std::string_view::npos) inputs.kwargs = atom::parse_json(input.substr(zero + 1), "variables");
    if (!inputs.kwargs.is_object()) return 0;
    inputs.messages =
        inputs.kwargs.value("messages", atom::Json::array({{{"role", "user"}, {"content", "hi"}}}));
    const atom::text::ChatTemplate chat_template{std::string(input.substr(0, zero))};
    inputs.messages = atom::text::normalize_messages(inputs.messages, {});
    chat_template.render(inputs, limits);
  } catch (const atom::Error&) {
  }
  return 0;
}
