#include "server/web_page.h"

#include "server/web_assets.h"

namespace atom::server {
namespace {

// Nothing from elsewhere, no inline script, no frame around the page.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri "
    "'none'; "
    "form-action 'none'; frame-ancestors 'none'";

const char* content_type(std::string_view path) {
  if (path.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (path.ends_with(".css")) return "text/css; charset=utf-8";
  return "text/html; charset=utf-8";
}

}  // namespace

std::optional<Reply> web_page(const std::string& path) {
  const std::string_view wanted = path == "/" ? "/index.html" : std::string_view(path);
  for (const WebAsset& asset : web_assets()) {
    if (asset.path != wanted) continue;
    ReplyHead head{.content_type = content_type(wanted)};
    head.headers = {{"Content-Security-Policy", kPolicy},
                    {"Referrer-Policy", "no-referrer"},
                    {"Cache-Control", "no-cache"}};
    return Reply{std::move(head), std::string(asset.body)};
  }
  return std::nullopt;
}

}  // namespace atom::server
