// Unicode facts the tokenizer needs, on top of ICU.
#include "text/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace atom::text {

namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

const icu::Normalizer2& normalizer(NormalForm form) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* instance = nullptr;
  switch (form) {
    case NormalForm::nfc:
      instance = icu::Normalizer2::getNFCInstance(status);
      break;
    case NormalForm::nfd:
      instance = icu::Normalizer2::getNFDInstance(status);
      break;
    case NormalForm::nfkc:
      instance = icu::Normalizer2::getNFKCInstance(status);
      break;
    case NormalForm::nfkd:
      instance = icu::Normalizer2::getNFKDInstance(status);
      break;
  }
  CHECK(U_SUCCESS(status), "ICU: {}", u_errorName(status));
  return *instance;
}

constexpr size_t kTameMarks = 32;

// True for characters that canonical ordering moves: marks, and three Tibetan vowels that are made of marks.
bool is_reordered(char32_t c) {
  return u_getCombiningClass(static_cast<UChar32>(c)) != 0 || c == 0xF73 || c == 0xF75 || c == 0xF81;
}

// Appends the canonical decomposition of a run of marks, in canonical order.
void append_ordered(std::string_view marks, std::string& out) {
  const icu::Normalizer2& nfd = normalizer(NormalForm::nfd);
  std::vector<std::pair<uint8_t, char32_t>> parts;
  for (size_t pos = 0; pos < marks.size();) {
    const char32_t c = read_utf8(marks, pos);
    icu::UnicodeString decomposed;
    if (!nfd.getDecomposition(static_cast<UChar32>(c), decomposed)) decomposed = static_cast<UChar32>(c);
    for (int32_t i = 0; i < decomposed.length(); i = decomposed.moveIndex32(i, 1)) {
      const UChar32 part = decomposed.char32At(i);
      parts.emplace_back(u_getCombiningClass(part), static_cast<char32_t>(part));
    }
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [order, part] : parts) append_utf8(part, out);
}

// ICU orders a run of n marks in O(n²) steps. Long runs are put in canonical order here, which changes no
// normal form.
void order_long_runs(std::string& text) {
  std::string out;
  size_t done = 0, run_begin = 0, run = 0;  // the current run of marks: its first byte and length
  for (size_t pos = 0; pos <= text.size();) {
    const size_t at = pos;
    const bool mark = pos < text.size() && is_reordered(read_utf8(text, pos));
    if (mark && run++ == 0) run_begin = at;
    if (mark) continue;
    if (run > kTameMarks) {
      out.append(text, done, run_begin - done);
      append_ordered(std::string_view(text).substr(run_begin, at - run_begin), out);
      done = at;
    }
    run = 0;
    if (at == text.size()) break;
  }
  if (done == 0) return;
  out.append(text, done);
  text = std::move(out);
}

}  // namespace

Utf8Step utf8_step(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return {Utf8Step::character, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Step::ill_formed, 1};
  const uint8_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and code points past U+10FFFF.
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (uint8_t i = 1; i < size; ++i) {
    if (i == bytes.size()) return {Utf8Step::truncated, i};
    if (at(i) < low || at(i) > high) return {Utf8Step::ill_formed, i};
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Step::character, size};
}

char32_t read_utf8(std::string_view text, size_t& pos) {
  const auto next = [&] { return static_cast<uint8_t>(text[pos++]); };
  const char32_t lead = next();
  if (lead < 0x80) return lead;
  char32_t c = lead < 0xE0 ? lead & 0x1F : lead < 0xF0 ? lead & 0x0F : lead & 0x07;
  for (int more = lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3; more > 0; --more) c = c << 6 | (next() & 0x3F);
  return c;
}

void append_utf8(char32_t c, std::string& out) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

void Utf8Repair::put_mark(int bytes, std::string& out) const {
  for (int marks = mark_ == Mark::byte ? bytes : 1; marks > 0; --marks) out.append(kReplacement);
}

void Utf8Repair::feed(std::string_view bytes, std::string& out) {
  while (!pending_.empty() && !bytes.empty()) {
    pending_.push_back(bytes.front());
    const Utf8Step step = utf8_step(pending_);
    if (step.kind == Utf8Step::ill_formed) {  // the new byte does not continue the character: judge it anew
      put_mark(step.size, out);
      pending_.clear();
      break;
    }
    bytes.remove_prefix(1);
    if (step.kind == Utf8Step::character) {
      out.append(pending_);
      pending_.clear();
    }
  }
  size_t good = 0;
  while (good < bytes.size()) {
    const Utf8Step step = utf8_step(bytes.substr(good));
    if (step.kind == Utf8Step::character) {
      good += step.size;
      continue;
    }
    out.append(bytes.substr(0, good));
    if (step.kind == Utf8Step::truncated) {
      pending_ = bytes.substr(good);
      return;
    }
    put_mark(step.size, out);
    bytes.remove_prefix(good + step.size);
    good = 0;
  }
  out.append(bytes);
}

void Utf8Repair::flush(std::string& out) {
  if (!pending_.empty()) put_mark(static_cast<int>(pending_.size()), out);
  pending_.clear();
}

std::string repair_utf8(std::string_view bytes) {
  std::string out;
  Utf8Repair repair;
  repair.feed(bytes, out);
  repair.flush(out);
  return out;
}

bool is_white_space(char32_t c) { return u_isUWhiteSpace(static_cast<UChar32>(c)); }

bool is_word(char32_t c) {
  const auto point = static_cast<UChar32>(c);
  return u_isUAlphabetic(point) ||
         (U_GET_GC_MASK(point) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 ||
         u_hasBinaryProperty(point, UCHAR_JOIN_CONTROL);
}

void normalize(NormalForm form, std::string& text) {
  // Below U+00C0 every form but the compatibility ones is the identity; below U+0300 NFC is as well.
  const uint8_t inert_below = form == NormalForm::nfc ? 0xCC : form == NormalForm::nfd ? 0xC3 : 0x80;
  const auto may_change = [&](char c) { return static_cast<uint8_t>(c) >= inert_below; };
  if (std::none_of(text.begin(), text.end(), may_change)) return;
  order_long_runs(text);
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2& instance = normalizer(form);
  if (instance.isNormalizedUTF8(text, status) && U_SUCCESS(status)) return;
  std::string out;
  out.reserve(text.size());
  icu::StringByteSink<std::string> sink(&out);
  instance.normalizeUTF8(0, text, sink, nullptr, status);
  CHECK(U_SUCCESS(status), "ICU: {}", u_errorName(status));
  text = std::move(out);
}

void lowercase(std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = read_utf8(text, pos);
    if (c == 0x130) {  // the one character whose lower case is always two
      out.append("i\xCC\x87");
    } else {
      append_utf8(static_cast<char32_t>(u_tolower(static_cast<UChar32>(c))), out);
    }
  }
  text = std::move(out);
}

}  // namespace atom::text
