// API keys, compared in constant time.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace atom::server {

class ApiKeys {
 public:
  // No keys: everybody may ask.
  explicit ApiKeys(const std::vector<std::string>& keys);

  bool required() const { return !digests_.empty(); }
  // A short fingerprint of the key (never the key) if it is one of them. Takes equally long for every answer.
  std::optional<std::string> match(std::string_view key) const;

 private:
  std::vector<std::array<uint8_t, 32>> digests_;  // SHA-256
};

}  // namespace atom::server
