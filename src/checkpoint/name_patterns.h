// Names of modules as configs list them: exact, prefixes and suffixes of whole components, globs, and `re:`.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace atom {

namespace text {
class UnicodeRegex;
}

// Matches `*` against any text.
bool matches_pattern(std::string_view pattern, std::string_view name);

class NamePatterns {
 public:
  NamePatterns() = default;
  // Throws Error (invalid) that begins with `where` for an `re:` entry that does not compile.
  NamePatterns(const std::vector<std::string>& patterns, const std::string& where);

  // True if an entry is the module's name, one of the modules that contain it, or its last components:
  // "lm_head", "model.layers.3" and "self_attn.q_proj" all match what they seem to, and "model.layers.1" does
  // not match "model.layers.10". An entry with `*` is compared with the name and with the modules that
  // contain it; "re:..." must match from the name's beginning on.
  bool match(std::string_view module) const;
  bool empty() const { return exact_.empty() && globs_.empty() && regexes_.empty(); }

 private:
  std::vector<std::string> exact_, globs_;  // exact_ is sorted
  std::vector<std::shared_ptr<const text::UnicodeRegex>> regexes_;
};

}  // namespace atom
