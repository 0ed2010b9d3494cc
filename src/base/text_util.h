// Small text helpers shared by error messages: nearest names, byte counts.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace atom {

// Up to `count` of `candidates` that resemble `name` most (edit distance), best first; none that share
// little.
std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& candidates,
                                       int count);

// "; did you mean a, b?" or "" when nothing is near.
std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates);

// "1.50 GiB".
std::string format_bytes(int64_t bytes);

// Without the blanks and line ends around it.
std::string_view trimmed(std::string_view text);

// True if `text` is well-formed UTF-8 (no surrogates, no overlong forms).
bool is_valid_utf8(std::string_view text);

}  // namespace atom
