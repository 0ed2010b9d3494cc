// The decoder of a tokenizer.json.
#include "text/decoder.h"

#include "base/error.h"
#include "text/bpe_bytes.h"

namespace atom::text {

namespace {

constexpr int kMaxStrip = 1024;
constexpr size_t kMaxTokenBytes = 1 << 20;

// The byte of "<0xE4>"; -1 for any other token.
int fallback_byte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  int value = 0;
  for (const char c : token.substr(3, 2)) {
    const bool letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'f';
    if (!letter && (c < '0' || c > '9')) return -1;
    value = value * 16 + (letter ? (c | 0x20) - 'a' + 10 : c - '0');
  }
  return value;
}

void strip_token(const Decoder::Strip& strip, std::string& token) {
  std::string content;
  append_utf8(strip.content, content);
  for (int i = 0; i < strip.left && token.starts_with(content); ++i) token.erase(0, content.size());
  for (int i = 0; i < strip.right && token.ends_with(content); ++i)
    token.resize(token.size() - content.size());
}

}  // namespace

Decoder::Decoder(const Component& config) : opening_differs_(false), separated_(false) { add(config); }

void Decoder::add(const Component& config) {
  const std::string type = config.type();
  const auto needs_tokens = [&] {
    if (fused_ || bytes_ != Bytes::text) {
      throw invalid("{}: a {} decoder cannot follow ByteLevel, ByteFallback or Fuse here", config.place(),
                    type);
    }
  };
  if (type == "Sequence") {
    for (const Component& part : config.children("decoders")) add(part);
  } else if (type == "ByteLevel") {
    needs_tokens();
    bytes_ = Bytes::alphabet;
    fused_ = true;
  } else if (type == "ByteFallback") {
    needs_tokens();
    bytes_ = Bytes::fallback;
  } else if (type == "Fuse") {
    fused_ = true;
  } else if (type == "Replace") {
    needs_tokens();
    steps_.emplace_back(Replace(config));
  } else if (type == "Metaspace") {
    needs_tokens();
    const bool prepends = config.has("prepend_scheme") ? config.text("prepend_scheme") != "never"
                                                       : config.flag("add_prefix_space", true);
    const std::string mark = config.has("replacement") ? config.text("replacement") : "\u2581";
    if (mark.empty()) throw invalid("{}.replacement: expected one character", config.place());
    steps_.emplace_back(Metaspace{mark, prepends});
    opening_differs_ |= prepends;
  } else if (type == "Strip") {
    add_strip(config);
  } else {
    config.unknown_type("ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, Sequence");
  }
}

void Decoder::add_strip(const Component& config) {
  const std::string content = config.text("content");
  Strip strip;
  if (content.empty() || utf8_step(content).size != content.size()) {
    throw invalid("{}.content: expected one character", config.place());
  }
  size_t pos = 0;
  strip.content = read_utf8(content, pos);
  const int64_t left = config.number("start"), right = config.number("stop");
  if (left < 0 || left > kMaxStrip || right < 0 || right > kMaxStrip) {
    throw invalid("{}: start and stop must lie between 0 and {}", config.place(), kMaxStrip);
  }
  strip.left = static_cast<int>(left);
  strip.right = static_cast<int>(right);
  if (!fused_) {
    if (bytes_ != Bytes::text)
      throw invalid("{}: Strip between ByteFallback and Fuse is not supported", config.place());
    steps_.emplace_back(strip);
  } else if (strip_.left == 0 && strip_.right == 0) {
    strip_ = strip;
  } else {
    throw invalid("{}: a second Strip of the whole text is not supported", config.place());
  }
}

void Decoder::append(std::string_view token, bool literal, bool opens_text, std::string& out,
                     RegexScratch& scratch) const {
  if (separated_ && !opens_text) out.push_back(' ');
  std::string edited;
  if (!steps_.empty()) {
    edited = token;
    for (const Step& step : steps_) {
      if (const auto* replace = std::get_if<Replace>(&step)) {
        replace->apply(edited, kMaxTokenBytes, scratch);
      } else if (const auto* strip = std::get_if<Strip>(&step)) {
        strip_token(*strip, edited);
      } else {
        const auto& metaspace = std::get<Metaspace>(step);
        const std::string_view space = opens_text && metaspace.drops_first ? "" : " ";
        for (size_t at = 0; (at = edited.find(metaspace.mark, at)) != std::string::npos; at += space.size()) {
          edited.replace(at, metaspace.mark.size(), space);
        }
      }
    }
    token = edited;
  }
  if (bytes_ == Bytes::alphabet && !literal && append_char_bytes(token, out)) return;
  if (const int byte = bytes_ == Bytes::fallback ? fallback_byte(token) : -1; byte >= 0) {
    out.push_back(static_cast<char>(byte));
    return;
  }
  out.append(token);
}

}  // namespace atom::text
