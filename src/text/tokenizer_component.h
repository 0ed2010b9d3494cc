// Typed reading of the component objects of a tokenizer.json, with errors that name the place.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace atom::text {

// A JSON object and where it lies, for example "tokenizer.json: pre_tokenizer.pretokenizers[1]". Does not own
// the JSON. Every method throws Error (invalid) that begins with the place.
class Component {
 public:
  Component(const Json& json, std::string place);

  const std::string& place() const { return place_; }
  std::string type() const { return text("type"); }
  [[noreturn]] void unknown_type(std::string_view known) const;

  bool has(std::string_view key) const;  // present and not null
  std::string text(std::string_view key) const;
  bool flag(std::string_view key, bool otherwise) const;
  int64_t number(std::string_view key) const;
  const Json& member(std::string_view key) const;
  Component child(std::string_view key) const { return {member(key), place_ + "." + std::string(key)}; }
  std::vector<Component> children(std::string_view key) const;  // an array of objects

 private:
  const Json* json_;
  std::string place_;
};

}  // namespace atom::text
