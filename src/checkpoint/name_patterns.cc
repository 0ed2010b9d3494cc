#include "checkpoint/name_patterns.h"

#include <algorithm>

#include "text/unicode_regex.h"

namespace atom {
namespace {

// True if `fn` holds for the name or for one of the modules that contain it.
template <class Fn>
bool any_module(std::string_view name, const Fn& fn) {
  for (;;) {
    if (fn(name)) return true;
    const size_t dot = name.rfind('.');
    if (dot == std::string_view::npos) return false;
    name = name.substr(0, dot);
  }
}

}  // namespace

bool matches_pattern(std::string_view pattern, std::string_view name) {
  // Greedy match with one backtrack point per star: linear in practice, bounded by |pattern| * |name|.
  size_t p = 0, n = 0, star = std::string_view::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

NamePatterns::NamePatterns(const std::vector<std::string>& patterns, const std::string& where) {
  for (const std::string& pattern : patterns) {
    if (pattern.starts_with("re:")) {
      regexes_.push_back(
          std::make_shared<text::UnicodeRegex>("\\A(?:" + pattern.substr(3) + ")", where + ": " + pattern));
    } else {
      (pattern.find('*') == std::string::npos ? exact_ : globs_).push_back(pattern);
    }
  }
  std::sort(exact_.begin(), exact_.end());
}

bool NamePatterns::match(std::string_view module) const {
  const auto listed = [&](std::string_view name) {
    return std::binary_search(exact_.begin(), exact_.end(), name, std::less<>());
  };
  if (any_module(module, listed)) return true;
  for (size_t dot = module.find('.'); dot != std::string_view::npos; dot = module.find('.', dot + 1)) {
    if (listed(module.substr(dot + 1))) return true;
  }
  for (const std::string& glob : globs_) {
    if (any_module(module, [&](std::string_view name) { return matches_pattern(glob, name); })) return true;
  }
  if (regexes_.empty()) return false;
  text::RegexScratch scratch;
  return std::any_of(regexes_.begin(), regexes_.end(), [&](const auto& regex) {
    size_t begin, end;
    return text::UnicodeRegex::Matches(*regex, module, scratch).next(begin, end);
  });
}

}  // namespace atom
