// Text to token ids and back.
#include "text/tokenizer.h"

#include <simdjson.h>

#include "text/detokenizer.h"
#include "text/tokenizer_impl.h"

namespace atom::text {

namespace {

constexpr size_t kMaxTextBytes = 256 << 20;
constexpr size_t kMaxVocabBytes = 1 << 30;
constexpr size_t kKeptBytes = 1 << 20;  // of a buffer that an idle scratch may keep

}  // namespace

std::unique_ptr<Tokenizer> TokenizerParts::assemble(std::string_view name) && {
  std::vector<std::string> normal_contents(added.size());
  RegexScratch scratch;
  std::vector<int32_t> not_in_words;  // special tokens, and added ones that the model does not know
  for (size_t i = 0; i < added.size(); ++i) {
    AddedToken& token = added[i];
    // A token of the model keeps the model's id, whatever the list says.
    const int32_t model_id = vocab.find(token.content);
    if (model_id != kNoToken) token.id = model_id;
    if (!vocab.has(token.id)) {
      vocab.add(token.content, token.id);
    } else if (vocab.text(token.id) != token.content) {
      throw invalid("{}: added_tokens[{}]: id {} of \"{}\" already belongs to \"{}\"", name, i, token.id,
                    token.content, vocab.text(token.id));
    }
    if (token.special || model_id == kNoToken) not_in_words.push_back(token.id);
    normal_contents[i] = token.content;
    if (token.normalized) normalizer.apply(normal_contents[i], scratch);
  }
  for (const int32_t id : post_processor.before) {
    if (!vocab.has(id)) throw invalid("{}: post_processor: token id {} is not in the vocabulary", name, id);
  }
  for (const int32_t id : post_processor.behind) {
    if (!vocab.has(id)) throw invalid("{}: post_processor: token id {} is not in the vocabulary", name, id);
  }
  bpe.reads_bytes = pre_tokenizer.gives_bytes();
  Bpe model(std::move(vocab), std::move(merges), std::move(bpe), not_in_words);
  AddedTokens tokens(std::move(added), normal_contents);
  return std::unique_ptr<Tokenizer>(
      new Tokenizer(std::make_unique<Tokenizer::Impl>(std::move(model), std::move(tokens), *this, name)));
}

Tokenizer::Impl::Loan::Loan(const Impl& impl) : impl_(impl) {
  const std::lock_guard lock(impl.mutex);
  if (impl.idle.empty()) {
    scratch_ = std::make_unique<Scratch>();
  } else {
    scratch_ = std::move(impl.idle.back());
    impl.idle.pop_back();
  }
}

Tokenizer::Impl::Loan::~Loan() {
  scratch_->bpe.trim();
  if (scratch_->text.capacity() > kKeptBytes) scratch_->text = {};
  if (scratch_->pieces.capacity() * sizeof(Piece) > kKeptBytes) scratch_->pieces = {};
  const std::lock_guard lock(impl_.mutex);
  impl_.idle.push_back(std::move(scratch_));
}

Tokenizer::Impl::Impl(Bpe model, AddedTokens added_tokens, TokenizerParts& parts, std::string_view name)
    : normalizer(std::move(parts.normalizer)),
      added(std::move(added_tokens)),
      pre_tokenizer(std::move(parts.pre_tokenizer)),
      bpe(std::move(model)),
      post_processor(std::move(parts.post_processor)),
      decoder(std::move(parts.decoder)) {
  const Vocab& vocab = bpe.vocab();
  is_added.resize(static_cast<size_t>(vocab.size()));
  for (const AddedToken& token : added.tokens()) is_added[static_cast<size_t>(token.id)] = true;
  token_begins.reserve(static_cast<size_t>(vocab.size()) + 1);
  RegexScratch scratch;
  for (int32_t id = 0; id < vocab.size(); ++id) {
    token_begins.push_back(static_cast<uint32_t>(token_bytes.size()));
    if (vocab.has(id)) append_bytes(id, false, token_bytes, scratch);
    if (token_bytes.size() > kMaxVocabBytes) throw invalid("{}: decoder: the tokens become too long", name);
  }
  token_begins.push_back(static_cast<uint32_t>(token_bytes.size()));
}

void Tokenizer::Impl::append_bytes(int32_t id, bool opens_text, std::string& out,
                                   RegexScratch& scratch) const {
  decoder.append(bpe.vocab().text(id), is_added[static_cast<size_t>(id)], opens_text, out, scratch);
}

std::string_view Tokenizer::Impl::bytes_of(int32_t id) const {
  const auto index = static_cast<size_t>(id);
  return std::string_view(token_bytes)
      .substr(token_begins[index], token_begins[index + 1] - token_begins[index]);
}

void Tokenizer::Impl::encode_words(std::string_view text, bool opens_text, std::vector<int32_t>& out,
                                   Scratch& scratch) const {
  scratch.text = text;
  pre_tokenizer.apply(scratch.text, opens_text, scratch.pieces, scratch.regex);
  const std::string_view words = scratch.text;
  for (const Piece piece : scratch.pieces) {
    bpe.encode(words.substr(piece.begin, piece.end - piece.begin), out, scratch.bpe);
  }
}

void Tokenizer::Impl::encode_text(std::string_view text, bool opens_text, bool special_in_text,
                                  std::vector<int32_t>& out, Scratch& scratch) const {
  std::string normal;
  if (!normalizer.is_identity()) {
    normal = text;
    normalizer.apply(normal, scratch.regex);
    text = normal;
  }
  if (!added.has_normalized()) return encode_words(text, opens_text, out, scratch);
  added.cut(text, true, special_in_text, scratch.inner_sections);
  for (const AddedTokens::Section& section : scratch.inner_sections) {
    if (section.id != -1) {
      out.push_back(section.id);
    } else {
      encode_words(text.substr(section.begin, section.end - section.begin), opens_text && section.begin == 0,
                   out, scratch);
    }
  }
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    throw invalid("a text of {} bytes is too long to tokenize (at most {})", text.size(), kMaxTextBytes);
  }
  std::string repaired;
  if (!simdjson::validate_utf8(text)) {
    repaired = repair_utf8(text);
    text = repaired;
  }
  const Impl::Loan loan(*impl_);
  Impl::Scratch& scratch = *loan;
  std::vector<int32_t> out;
  out.reserve(text.size() / 3 + 8);
  if (options.add_special_tokens) out = impl_->post_processor.before;
  impl_->added.cut(text, false, options.special_in_text, scratch.sections, options.plain);
  for (const AddedTokens::Section& section : scratch.sections) {
    if (section.id != -1) {
      out.push_back(section.id);
    } else {
      // Places in a normalized text are not those of `plain`: there a section with such a range is plain.
      const bool special = options.special_in_text && !overlaps(options.plain, section.begin, section.end);
      impl_->encode_text(text.substr(section.begin, section.end - section.begin), section.begin == 0, special,
                         out, scratch);
    }
  }
  if (options.add_special_tokens) {
    const std::vector<int32_t>& behind = impl_->post_processor.behind;
    out.insert(out.end(), behind.begin(), behind.end());
  }
  return out;
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  Detokenizer detokenizer(*this, skip_special_tokens);
  Result<std::string> text = detokenizer.feed(ids);
  if (text.ok()) text.value() += detokenizer.flush();
  return text;
}

int32_t Tokenizer::vocab_size() const { return impl_->bpe.vocab().size(); }
bool Tokenizer::has(int32_t id) const { return impl_->bpe.vocab().has(id); }

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  const int32_t id = impl_->bpe.vocab().find(token);
  return id == kNoToken ? std::nullopt : std::optional(id);
}

std::string_view Tokenizer::id_to_token(int32_t id) const {
  return has(id) ? impl_->bpe.vocab().text(id) : std::string_view();
}
const AddedTokens& Tokenizer::added_tokens() const { return impl_->added; }
bool Tokenizer::is_special(int32_t id) const { return impl_->added.is_special(id); }
std::string_view Tokenizer::token_bytes(int32_t id) const {
  return has(id) ? impl_->bytes_of(id) : std::string_view();
}

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
    : tokenizer_(tokenizer),
      skip_special_tokens_(skip_special_tokens),
      repair_(tokenizer.impl_->decoder.mark()),
      strip_left_(tokenizer.impl_->decoder.strip().left) {}

Result<std::string> Detokenizer::feed(std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    if (!tokenizer_.has(id)) {
      return invalid("token id {} has no token in the vocabulary of {} ids", id, tokenizer_.vocab_size());
    }
  }
  const Tokenizer::Impl& impl = *tokenizer_.impl_;
  std::string bytes;
  for (const int32_t id : ids) {
    if (skip_special_tokens_ && tokenizer_.is_special(id)) continue;
    if (opens_text_ && impl.decoder.opening_differs()) {
      const Tokenizer::Impl::Loan scratch(impl);
      impl.append_bytes(id, true, bytes, (*scratch).regex);
    } else {
      bytes += impl.bytes_of(id);
    }
    opens_text_ = false;
  }
  std::string text = std::move(tail_);
  tail_.clear();
  repair_.feed(bytes, text);
  return strip_ends(std::move(text));
}

std::string Detokenizer::flush() {
  std::string text = std::move(tail_);
  repair_.flush(text);
  text = strip_ends(std::move(text));
  tail_.clear();
  return text;
}

std::string Detokenizer::strip_ends(std::string text) {
  const Decoder::Strip& strip = tokenizer_.impl_->decoder.strip();
  std::string content;
  append_utf8(strip.content, content);
  size_t begin = 0, end = text.size();
  while (strip_left_ > 0 && begin < end) {
    const bool same = std::string_view(text).substr(begin).starts_with(content);
    strip_left_ = same ? strip_left_ - 1 : 0;
    if (same) begin += content.size();
  }
  for (int i = 0; i < strip.right && std::string_view(text).substr(begin, end - begin).ends_with(content);
       ++i) {
    end -= content.size();
  }
  tail_ = text.substr(end);
  return text.substr(begin, end - begin);
}

}  // namespace atom::text
