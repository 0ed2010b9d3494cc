// Reading a request's JSON strictly: every key must be read or be listed as harmless, or the request is
// refused with the key's name. Nothing that a client asks for is ignored in silence.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "base/json.h"
#include "server/api_error.h"

namespace atom::server {

// Parses a body. Refuses (ApiError) what is no JSON object, ill-formed UTF-8, nesting beyond kMaxJsonDepth,
// repeated keys, NUL characters and more than a million values.
Json parse_body(std::string_view body);

class Fields {
 public:
  // `place` is where the object stands ("stream_options"); "" for the body itself. The object must outlive
  // this. Throws ApiError if it is no object.
  explicit Fields(const Json& object, std::string place = {});

  // Each marks the key as read. Absent and null are the same: nothing.
  const Json* find(std::string_view key);
  std::optional<bool> boolean(std::string_view key);
  std::optional<int64_t> integer(std::string_view key, int64_t low, int64_t high);
  std::optional<double> number(std::string_view key, double low, double high);
  std::optional<std::string> text(std::string_view key);
  const Json* object(std::string_view key);
  const Json* array(std::string_view key, size_t max_size);
  std::string required_text(std::string_view key);

  // Keys that change nothing here and that clients send: whatever they say.
  void harmless(std::initializer_list<std::string_view> keys);
  // A key that is understood but has one supported value: another is refused with `remedy`.
  void only(std::string_view key, const Json& supported, std::string_view remedy);
  // Throws for the first key that nobody has read, unless it is null.
  void done() const;

  // "stream_options.include_usage"
  std::string path(std::string_view key) const;

 private:
  const Json& object_;
  const std::string place_;
  std::unordered_set<std::string> read_;
};

}  // namespace atom::server
