// Regular expressions in the Oniguruma syntax of tokenizer.json, run by PCRE2's JIT on UTF-8.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_data_8;
struct pcre2_real_match_context_8;
struct pcre2_real_jit_stack_8;

namespace atom::text {

// The same pattern in PCRE2 syntax: what differs is which characters \s \w \h mean, class algebra ([a&&[^b]],
// nested classes), \uHHHH, {,n}, and {n,m}+ (a repeated repeat there, possessive here). Throws Error
// (invalid) that begins with `where` for what cannot be carried over.
std::string oniguruma_to_pcre2(std::string_view pattern, std::string_view where);

// Working memory of a match; one per thread.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class UnicodeRegex;
  pcre2_real_match_data_8* data_;
  pcre2_real_match_context_8* context_;
  pcre2_real_jit_stack_8* stack_;
};

// A compiled pattern. Immutable, so safe from many threads.
class UnicodeRegex {
 public:
  // Throws Error (invalid) that begins with `where` if the pattern does not compile.
  UnicodeRegex(std::string_view oniguruma_pattern, std::string_view where);
  // Matches `text` itself.
  static UnicodeRegex literal(std::string_view text, std::string_view where);

  // The successive matches in a subject, left to right, that do not overlap. An empty match right behind the
  // previous match is skipped.
  class Matches {
   public:
    // `subject` is well-formed UTF-8; it and `scratch` must outlive this object.
    Matches(const UnicodeRegex& regex, std::string_view subject, RegexScratch& scratch)
        : regex_(regex), subject_(subject), scratch_(scratch) {}
    // Throws Error (invalid) if the pattern needs more than a bounded amount of backtracking.
    bool next(size_t& begin, size_t& end);

   private:
    const UnicodeRegex& regex_;
    std::string_view subject_;
    RegexScratch& scratch_;
    size_t from_ = 0;
    size_t last_end_ = std::string_view::npos;
  };

 private:
  struct Free {
    void operator()(pcre2_real_code_8* code) const;
  };
  void compile(const std::string& pattern, std::string_view where);
  bool find(std::string_view subject, size_t from, RegexScratch& scratch, size_t& begin, size_t& end) const;

  UnicodeRegex() = default;
  std::string where_;
  std::unique_ptr<pcre2_real_code_8, Free> code_;
  bool jit_ = false;
};

}  // namespace atom::text
