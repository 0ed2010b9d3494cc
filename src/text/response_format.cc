#include "text/response_format.h"

namespace atom::text {

FormatChoice detect_response_format(std::string_view, const std::function<bool(std::string_view)>&,
                                    std::string_view) {
  return {"all content"};
}

bool prompt_opens_reasoning(const FormatChoice&, std::string_view) { return false; }

std::vector<std::string> visible_special_tokens(const FormatChoice&) { return {}; }

std::vector<std::string> turn_end_tokens(const FormatChoice&) { return {}; }

}  // namespace atom::text
