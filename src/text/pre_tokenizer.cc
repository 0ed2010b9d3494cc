// The pre-tokenizer of a tokenizer.json.
#include "text/pre_tokenizer.h"

#include "base/error.h"
#include "text/bpe_bytes.h"

namespace atom::text {

namespace {

// GPT-2's pattern, which ByteLevel brings along.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Whitespace's \w is Unicode's definition, which is wider than Oniguruma's.
constexpr std::string_view kWord = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d})";

// Rewrites each piece: edit(piece text, index of its first byte, out) appends its new text.
template <class Edit>
void rewrite(std::string& text, std::vector<Piece>& pieces, Edit edit) {
  std::string out;
  out.reserve(text.size() + text.size() / 8);
  for (Piece& piece : pieces) {
    const auto begin = static_cast<uint32_t>(out.size());
    edit(std::string_view(text).substr(piece.begin, piece.end - piece.begin), piece.begin, out);
    piece = {begin, static_cast<uint32_t>(out.size())};
  }
  text = std::move(out);
}

}  // namespace

PreTokenizer::PreTokenizer(const Component& config) {
  add(config);
  if (!steps_.empty() && std::holds_alternative<ByteChars>(steps_.back())) {
    steps_.pop_back();
    gives_bytes_ = true;
  }
}

void PreTokenizer::add(const Component& config) {
  const std::string type = config.type();
  const auto split = [&](std::string_view pattern, Delimiter delimiter, bool invert = false) {
    steps_.emplace_back(Split{UnicodeRegex(pattern, config.place()), delimiter, invert});
  };
  if (type == "Sequence") {
    for (const Component& part : config.children("pretokenizers")) add(part);
  } else if (type == "Split") {
    add_split(config);
  } else if (type == "ByteLevel") {
    if (config.flag("add_prefix_space", true)) steps_.emplace_back(PrefixSpace{});
    if (config.flag("use_regex", true)) split(kByteLevelPattern, Delimiter::isolated);
    steps_.emplace_back(ByteChars{});
  } else if (type == "Digits") {
    split(R"(\p{N})", config.flag("individual_digits", false) ? Delimiter::isolated : Delimiter::contiguous);
  } else if (type == "Metaspace") {
    add_metaspace(config);
  } else if (type == "Whitespace") {
    split(fmt::format(R"([{0}]+|[^\s{0}]+)", kWord), Delimiter::removed, true);
  } else if (type == "WhitespaceSplit") {
    split(R"(\s)", Delimiter::removed);
  } else if (type == "Punctuation") {
    steps_.emplace_back(
        Split{UnicodeRegex(R"([\p{P}!-/:-@\[-`{-~])", config.place()), Delimiter::isolated, false});
    if (config.has("behavior")) std::get<Split>(steps_.back()).delimiter = delimiter_of(config);
  } else {
    config.unknown_type(
        "Split, ByteLevel, Digits, Metaspace, Whitespace, WhitespaceSplit, Punctuation, Sequence");
  }
}

PreTokenizer::Delimiter PreTokenizer::delimiter_of(const Component& config) {
  const std::string name = config.text("behavior");
  if (name == "Removed") return Delimiter::removed;
  if (name == "Isolated") return Delimiter::isolated;
  if (name == "MergedWithPrevious") return Delimiter::merged_with_previous;
  if (name == "MergedWithNext") return Delimiter::merged_with_next;
  if (name == "Contiguous") return Delimiter::contiguous;
  throw invalid(
      "{}.behavior: \"{}\" is not known (Removed, Isolated, MergedWithPrevious, MergedWithNext or "
      "Contiguous)",
      config.place(), name);
}

void PreTokenizer::add_split(const Component& config) {
  const Component pattern = config.child("pattern");
  const Delimiter delimiter = delimiter_of(config);
  const bool invert = config.flag("invert", false);
  if (!pattern.has("String")) {
    steps_.emplace_back(Split{UnicodeRegex(pattern.text("Regex"), pattern.place()), delimiter, invert});
    return;
  }
  const std::string text = pattern.text("String");
  if (text.empty()) throw invalid("{}.String: an empty text cannot be split at", pattern.place());
  steps_.emplace_back(Split{UnicodeRegex::literal(text, pattern.place()), delimiter, invert});
}

void PreTokenizer::add_metaspace(const Component& config) {
  const std::string mark = config.has("replacement") ? config.text("replacement") : "\u2581";
  if (mark.empty() || utf8_step(mark).size != mark.size()) {
    throw invalid("{}.replacement: expected one character", config.place());
  }
  Mark step{mark, Mark::always};
  if (config.has("prepend_scheme")) {
    const std::string scheme = config.text("prepend_scheme");
    if (scheme != "always" && scheme != "first" && scheme != "never") {
      throw invalid("{}.prepend_scheme: \"{}\" is not known (always, first or never)", config.place(),
                    scheme);
    }
    step.prepend = scheme == "always" ? Mark::always : scheme == "first" ? Mark::first : Mark::never;
  } else if (!config.flag("add_prefix_space", true)) {
    step.prepend = Mark::never;
  }
  steps_.emplace_back(step);
  if (config.flag("split", true)) {
    steps_.emplace_back(
        Split{UnicodeRegex::literal(mark, config.place()), Delimiter::merged_with_next, false});
  }
}

void PreTokenizer::Split::apply(const std::string& text, std::vector<Piece>& pieces,
                                RegexScratch& scratch) const {
  std::vector<Piece> out;
  out.reserve(pieces.size() + text.size() / 4);
  for (const Piece& piece : pieces) {
    bool has_last = false;  // a segment of this piece has been put out
    bool last_was = false;  // the segment before this one was a delimiter
    Piece held{0, 0};       // a delimiter that waits for what follows; empty: none
    const auto put = [&](Piece segment) {
      out.push_back(segment);
      has_last = true;
    };
    const auto segment = [&](Piece s, bool matched) {
      const bool delimits = matched != invert;
      switch (delimiter) {
        case Delimiter::isolated:
          put(s);
          break;
        case Delimiter::removed:
          if (!delimits) put(s);
          break;
        case Delimiter::contiguous:
          if (delimits == last_was && has_last) {
            out.back().end = s.end;
          } else {
            put(s);
          }
          break;
        case Delimiter::merged_with_previous:
          if (delimits && !last_was && has_last) {
            out.back().end = s.end;
          } else {
            put(s);
          }
          break;
        case Delimiter::merged_with_next:
          if (delimits) {
            if (held.begin != held.end) put(held);
            held = s;
          } else {
            put({held.begin != held.end ? held.begin : s.begin, s.end});
            held = {0, 0};
          }
          break;
      }
      last_was = delimits;
    };
    uint32_t done = piece.begin;
    UnicodeRegex::Matches matches(
        pattern, std::string_view(text).substr(piece.begin, piece.end - piece.begin), scratch);
    for (size_t begin, end; matches.next(begin, end);) {
      const Piece match{piece.begin + static_cast<uint32_t>(begin), piece.begin + static_cast<uint32_t>(end)};
      if (match.begin > done) segment({done, match.begin}, false);
      if (match.begin < match.end) segment(match, true);
      done = match.end;
    }
    if (done < piece.end) segment({done, piece.end}, false);
    if (held.begin != held.end) put(held);
  }
  pieces = std::move(out);
}

void PreTokenizer::apply(std::string& text, bool opens_text, std::vector<Piece>& pieces,
                         RegexScratch& scratch) const {
  pieces.clear();
  if (text.empty()) return;
  pieces.push_back({0, static_cast<uint32_t>(text.size())});
  for (const Step& step : steps_) {
    if (const auto* split = std::get_if<Split>(&step)) {
      split->apply(text, pieces, scratch);
    } else if (std::holds_alternative<PrefixSpace>(step)) {
      rewrite(text, pieces, [](std::string_view piece, uint32_t, std::string& out) {
        if (!piece.starts_with(' ')) out.push_back(' ');
        out.append(piece);
      });
    } else if (std::holds_alternative<ByteChars>(step)) {
      rewrite(text, pieces,
              [](std::string_view piece, uint32_t, std::string& out) { append_byte_chars(piece, out); });
    } else {
      const Mark& mark = std::get<Mark>(step);
      rewrite(text, pieces, [&](std::string_view piece, uint32_t begin, std::string& out) {
        const bool wants =
            mark.prepend == Mark::always || (mark.prepend == Mark::first && opens_text && begin == 0);
        if (wants && !piece.starts_with(' ') && !piece.starts_with(mark.mark)) out.append(mark.mark);
        for (const char c : piece) {
          if (c == ' ') {
            out.append(mark.mark);
          } else {
            out.push_back(c);
          }
        }
      });
    }
  }
}

}  // namespace atom::text
