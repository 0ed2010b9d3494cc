// The normalizer of a tokenizer.json.
#include "text/normalizer.h"

#include "base/error.h"

namespace atom::text {

namespace {

void strip(std::string& text, bool left, bool right) {
  size_t begin = 0, end = 0;  // end: behind the last character that is not white space
  bool leading = true;
  for (size_t pos = 0; pos < text.size();) {
    const bool space = is_white_space(read_utf8(text, pos));
    if (space && leading) begin = pos;
    if (!space) {
      leading = false;
      end = pos;
    }
  }
  if (!left) begin = 0;
  if (!right) end = text.size();
  text = begin < end ? text.substr(begin, end - begin) : std::string();
}

}  // namespace

Replace::Replace(const Component& config) : place_(config.place()), to_(config.text("content")) {
  const Component pattern = config.child("pattern");
  if (pattern.has("String")) {
    from_ = pattern.text("String");
  } else {
    regex_.emplace(pattern.text("Regex"), pattern.place());
  }
}

void Replace::apply(std::string& text, size_t max_bytes, RegexScratch& scratch) const {
  std::string out;
  size_t done = 0;
  const auto replace = [&](size_t begin, size_t end) {
    out.append(text, done, begin - done).append(to_);
    done = end;
    if (out.size() > max_bytes) throw invalid("{}: the text grows beyond {} bytes", place_, max_bytes);
  };
  if (regex_) {
    UnicodeRegex::Matches matches(*regex_, text, scratch);
    for (size_t begin, end; matches.next(begin, end);) replace(begin, end);
  } else if (!from_.empty()) {
    for (size_t at = 0; (at = text.find(from_, at)) != std::string::npos; at = done)
      replace(at, at + from_.size());
  }
  if (done == 0 && out.empty()) return;
  out.append(text, done);
  text = std::move(out);
}

Normalizer::Normalizer(const Component& config) { add(config); }

void Normalizer::add(const Component& config) {
  const std::string type = config.type();
  if (type == "Sequence") {
    for (const Component& part : config.children("normalizers")) add(part);
  } else if (type == "NFC") {
    steps_.emplace_back(NormalForm::nfc);
  } else if (type == "NFD") {
    steps_.emplace_back(NormalForm::nfd);
  } else if (type == "NFKC") {
    steps_.emplace_back(NormalForm::nfkc);
  } else if (type == "NFKD") {
    steps_.emplace_back(NormalForm::nfkd);
  } else if (type == "Prepend") {
    steps_.emplace_back(Prepend{config.text("prepend")});
  } else if (type == "Replace") {
    steps_.emplace_back(Replace(config));
  } else if (type == "Lowercase") {
    steps_.emplace_back(Lowercase{});
  } else if (type == "Strip") {
    steps_.emplace_back(Strip{config.flag("strip_left", true), config.flag("strip_right", true)});
  } else {
    config.unknown_type("NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase, Strip, Sequence");
  }
}

void Normalizer::apply(std::string& text, RegexScratch& scratch) const {
  const size_t max_bytes = text.size() * 64 + (1 << 20);
  for (const Step& step : steps_) {
    if (text.empty()) return;
    if (const auto* form = std::get_if<NormalForm>(&step)) {
      normalize(*form, text);
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      text.insert(0, prepend->text);
    } else if (const auto* replace = std::get_if<Replace>(&step)) {
      replace->apply(text, max_bytes, scratch);
    } else if (const auto* sides = std::get_if<Strip>(&step)) {
      strip(text, sides->left, sides->right);
    } else {
      lowercase(text);
    }
  }
}

}  // namespace atom::text
