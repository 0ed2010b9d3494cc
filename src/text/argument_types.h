// What a tool's schema says about the types of its arguments, and values from untyped text.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "text/response_parser.h"

namespace atom::text {

// A set of JSON types.
using TypeSet = uint8_t;
inline constexpr TypeSet kStringType = 1;
inline constexpr TypeSet kNumberType = 2;  // integers too
inline constexpr TypeSet kBooleanType = 4;
inline constexpr TypeSet kNullType = 8;
inline constexpr TypeSet kArrayType = 16;
inline constexpr TypeSet kObjectType = 32;
inline constexpr TypeSet kAnyType = 63;

// The types that each argument of a tool may have. References ($ref within the schema) and anyOf, oneOf and
// allOf are followed to a bounded depth; what says nothing of types allows all.
class ArgumentTypes {
 public:
  ArgumentTypes() = default;  // knows no argument: any type
  explicit ArgumentTypes(const Json& parameters);
  TypeSet of(std::string_view argument) const;

 private:
  std::map<std::string, TypeSet, std::less<>> types_;
};

// The JSON text of a value that a model wrote as `text` for an argument of these types: the text itself where
// it is JSON of one of them (Python's True, False and None count as JSON's), else the text as a string. Text
// that would be a JSON string is taken literally, quotes included.
std::string typed_value(std::string_view text, TypeSet types);

// The same for a value that was cut off: a beginning of its JSON text.
std::string typed_beginning(std::string_view text, TypeSet types);

}  // namespace atom::text
