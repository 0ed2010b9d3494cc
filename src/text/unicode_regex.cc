// Compiling and running patterns with PCRE2.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/unicode_regex.h"

#include <pcre2.h>

#include "base/error.h"
#include "text/unicode.h"

namespace atom::text {

namespace {

constexpr size_t kMaxPatternBytes = 64 << 10;
constexpr uint32_t kMatchLimit = 4'000'000;   // backtracking points in one match
constexpr uint32_t kHeapLimitKib = 64 << 10;  // for the interpreter, where there is no JIT
constexpr size_t kJitStackBytes = 8 << 20;    // reserved, touched only by patterns that nest deeply

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[160];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

}  // namespace

RegexScratch::RegexScratch()
    : data_(pcre2_match_data_create(1, nullptr)),
      context_(pcre2_match_context_create(nullptr)),
      stack_(pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr)) {
  if (data_ == nullptr || context_ == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit(context_, kMatchLimit);
  pcre2_set_heap_limit(context_, kHeapLimitKib);
  if (stack_ != nullptr) pcre2_jit_stack_assign(context_, nullptr, stack_);
}

RegexScratch::~RegexScratch() {
  if (stack_ != nullptr) pcre2_jit_stack_free(stack_);
  pcre2_match_context_free(context_);
  pcre2_match_data_free(data_);
}

void UnicodeRegex::Free::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

UnicodeRegex::UnicodeRegex(std::string_view oniguruma_pattern, std::string_view where) {
  if (oniguruma_pattern.size() > kMaxPatternBytes) {
    throw invalid("{}: a pattern of {} bytes is too long (at most {})", where, oniguruma_pattern.size(),
                  kMaxPatternBytes);
  }
  compile(oniguruma_to_pcre2(oniguruma_pattern, where), where);
}

UnicodeRegex UnicodeRegex::literal(std::string_view text, std::string_view where) {
  if (text.size() > kMaxPatternBytes) {
    throw invalid("{}: a pattern of {} bytes is too long (at most {})", where, text.size(), kMaxPatternBytes);
  }
  std::string pattern;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80) {
      pattern += fmt::format("\\x{:02x}", c);
    } else {
      pattern.push_back(c);
    }
  }
  UnicodeRegex regex;
  regex.compile(pattern, where);
  return regex;
}

void UnicodeRegex::compile(const std::string& pattern, std::string_view where) {
  where_ = where;
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  // ^ and $ mean lines in Oniguruma.
  const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
  code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error,
                            &offset, context.get()));
  if (code_ == nullptr) {
    throw invalid("{}: the pattern does not compile: {} at byte {} of \"{}\"", where, pcre2_message(error),
                  offset, pattern.substr(0, 200));
  }
  jit_ = pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE) == 0;
}

bool UnicodeRegex::find(std::string_view subject, size_t from, RegexScratch& scratch, size_t& begin,
                        size_t& end) const {
  const auto match = jit_ ? pcre2_jit_match : pcre2_match;
  const int rc = match(code_.get(), reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(), from,
                       PCRE2_NO_UTF_CHECK, scratch.data_, scratch.context_);
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  if (rc < 0) throw invalid("{}: matching the pattern failed: {}", where_, pcre2_message(rc));
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(scratch.data_);
  begin = ends[0];
  end = ends[1];
  return true;
}

bool UnicodeRegex::Matches::next(size_t& begin, size_t& end) {
  while (from_ <= subject_.size() && regex_.find(subject_, from_, scratch_, begin, end)) {
    if (begin == end && end == last_end_) {
      if (from_ >= subject_.size()) return false;
      read_utf8(subject_, from_);
      continue;
    }
    from_ = last_end_ = end;
    return true;
  }
  return false;
}

}  // namespace atom::text
