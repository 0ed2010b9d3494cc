#include "server/api_keys.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>

namespace atom::server {
namespace {

std::array<uint8_t, 32> digest(std::string_view text) {
  std::array<uint8_t, 32> result{};
  ::SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), result.data());
  return result;
}

}  // namespace

ApiKeys::ApiKeys(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) digests_.push_back(digest(key));
}

std::optional<std::string> ApiKeys::match(std::string_view key) const {
  const std::array<uint8_t, 32> given = digest(key);
  bool found = false;
  for (const auto& known : digests_) found |= ::CRYPTO_memcmp(known.data(), given.data(), known.size()) == 0;
  if (!found) return std::nullopt;
  return fmt::format("{:02x}{:02x}{:02x}{:02x}", given[0], given[1], given[2], given[3]);
}

}  // namespace atom::server
