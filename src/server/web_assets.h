// The files of the chat page, src/server/web, as the build embeds them.
#pragma once
#include <span>
#include <string_view>

namespace atom::server {

struct WebAsset {
  std::string_view path;  // "/app.js"
  std::string_view body;
};

std::span<const WebAsset> web_assets();

}  // namespace atom::server
