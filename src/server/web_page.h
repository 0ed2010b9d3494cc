// The chat page at /.
#pragma once
#include <optional>
#include <string>

#include "server/http_message.h"

namespace atom::server {

// The file at this path ("/" is the page itself), if it is one of the page's.
std::optional<Reply> web_page(const std::string& path);

}  // namespace atom::server
