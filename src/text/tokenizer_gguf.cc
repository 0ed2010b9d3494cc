// A Tokenizer from the vocabulary of a GGUF file.
#include <algorithm>
#include <cmath>
#include <functional>

#include "base/text_util.h"
#include "text/tokenizer_gguf_pre.h"
#include "text/tokenizer_impl.h"

namespace atom::text {

namespace {

constexpr size_t kMaxVocabBytes = 256 << 20;
enum Type { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

int32_t type_of(const GgufVocab& vocab, size_t id) { return vocab.types.empty() ? kNormal : vocab.types[id]; }

void check(const GgufVocab& vocab) {
  const size_t n = vocab.tokens.size();
  if (n == 0) throw invalid("tokenizer.ggml.tokens: the vocabulary is empty");
  if (n > static_cast<size_t>(kMaxTokens)) throw invalid("tokenizer.ggml.tokens: {} tokens are too many", n);
  size_t bytes = 0;
  for (const std::string& token : vocab.tokens) bytes += token.size();
  if (bytes > kMaxVocabBytes) throw invalid("tokenizer.ggml.tokens: {} bytes are too many", bytes);
  if (!vocab.types.empty() && vocab.types.size() != n) {
    throw invalid("tokenizer.ggml.token_type: {} entries for {} tokens", vocab.types.size(), n);
  }
  const auto check_id = [&](int id, const char* key, bool needed) {
    if (id < -1 || id >= static_cast<int64_t>(n) || (needed && id < 0)) {
      throw invalid("tokenizer.ggml.{}: {} is not a token id", key, id);
    }
  };
  check_id(vocab.bos, "bos_token_id", vocab.add_bos);
  check_id(vocab.eos, "eos_token_id", vocab.add_eos);
  check_id(vocab.unk, "unknown_token_id", false);
}

void add_tokens(const GgufVocab& vocab, TokenizerParts& parts) {
  parts.vocab.reserve(static_cast<int64_t>(vocab.tokens.size()),
                      static_cast<int64_t>(vocab.tokens.size() * 8));
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    const std::string& token = vocab.tokens[id];
    // Padding entries may repeat a text; the first one counts when encoding.
    const bool unique = parts.vocab.add(token, static_cast<int32_t>(id)) == Vocab::Added::ok;
    const int32_t type = type_of(vocab, id);
    if (!unique || token.empty() || (type != kControl && type != kUserDefined && type != kUnknown)) continue;
    parts.added.push_back(
        {.id = static_cast<int32_t>(id), .content = token, .special = type != kUserDefined});
  }
  if (vocab.add_bos) parts.post_processor.before.push_back(vocab.bos);
  if (vocab.add_eos) parts.post_processor.behind.push_back(vocab.eos);
}

Json byte_level() {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", false}};
}

void load_gpt2(const GgufVocab& vocab, TokenizerParts& parts) {
  const GgufPreTokenizer& pre = gguf_pre_tokenizer(vocab.pre);
  Json steps = Json::array();
  for (const std::string_view pattern : pre.patterns) {
    steps.push_back({{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}});
  }
  steps.push_back(byte_level());
  parts.pre_tokenizer =
      PreTokenizer(Component({{"type", "Sequence"}, {"pretokenizers", steps}}, "tokenizer.ggml.pre"));
  if (pre.nfc) parts.normalizer = Normalizer(Component({{"type", "NFC"}}, "tokenizer.ggml.pre"));
  parts.decoder = Decoder(Component(byte_level(), "tokenizer.ggml.model"));
  parts.bpe.ignore_merges = pre.ignore_merges;
  for (size_t i = 0; i < vocab.merges.size(); ++i) {
    const std::string_view line = vocab.merges[i];
    const size_t space = line.find(' ', 1);
    if (space == std::string_view::npos)
      throw invalid("tokenizer.ggml.merges[{}]: \"{}\" is not a pair", i, line);
    std::string whole(line);
    whole.erase(space, 1);
    const Merge merge{parts.vocab.find(line.substr(0, space)), parts.vocab.find(line.substr(space + 1)),
                      parts.vocab.find(whole), static_cast<uint32_t>(i)};
    if (merge.left < 0 || merge.right < 0 || merge.merged < 0) {
      throw invalid("tokenizer.ggml.merges[{}]: \"{}\" needs a token that is not in the vocabulary", i, line);
    }
    parts.merges.push_back(merge);
  }
}

// SentencePiece joins the neighbours whose joint token has the best score, so every way to cut a token in two
// tokens is a merge rule; its rank is the place of the score.
void load_sentencepiece(const GgufVocab& vocab, TokenizerParts& parts) {
  if (vocab.scores.size() != vocab.tokens.size()) {
    throw invalid("tokenizer.ggml.scores: {} entries for {} tokens", vocab.scores.size(),
                  vocab.tokens.size());
  }
  std::vector<float> scores = vocab.scores;
  for (const float score : scores) {
    if (std::isnan(score)) throw invalid("tokenizer.ggml.scores: a score is not a number");
  }
  std::sort(scores.begin(), scores.end(), std::greater<>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    const std::string_view token = vocab.tokens[id];
    const int32_t type = type_of(vocab, id);
    if (type == kControl || type == kUnknown || type == kByte) continue;
    if (parts.vocab.find(token) != static_cast<int32_t>(id) || !is_valid_utf8(token)) continue;
    const auto place = std::lower_bound(scores.begin(), scores.end(), vocab.scores[id], std::greater<>());
    const auto rank = static_cast<uint32_t>(place - scores.begin());
    size_t cut = 0;
    if (!token.empty()) read_utf8(token, cut);
    while (cut < token.size()) {
      const int32_t left = parts.vocab.find(token.substr(0, cut)),
                    right = parts.vocab.find(token.substr(cut));
      if (left != kNoToken && right != kNoToken)
        parts.merges.push_back({left, right, static_cast<int32_t>(id), rank});
      read_utf8(token, cut);
    }
  }
  const Json space_to_mark = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  Json normalizers = Json::array();
  if (vocab.add_space_prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", "\u2581"}});
  normalizers.push_back(space_to_mark);
  const Json sequence = {{"type", "Sequence"}, {"normalizers", normalizers}};
  parts.normalizer = Normalizer(Component(sequence, "tokenizer.ggml.model"));
  Json decoders = {{{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}};
  if (vocab.add_space_prefix) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  const Json chain = {{"type", "Sequence"}, {"decoders", decoders}};
  parts.decoder = Decoder(Component(chain, "tokenizer.ggml.model"));
  parts.bpe.unk_id = vocab.unk;  // a gpt2 model leaves out a byte that it lacks
  parts.bpe.byte_fallback = true;
  parts.bpe.fuse_unk = true;
}

}  // namespace

std::unique_ptr<Tokenizer> Tokenizer::from_gguf(const GgufVocab& vocab) {
  check(vocab);
  TokenizerParts parts;
  add_tokens(vocab, parts);
  if (vocab.model == "gpt2") {
    load_gpt2(vocab, parts);
  } else if (vocab.model == "llama") {
    load_sentencepiece(vocab, parts);
  } else {
    throw invalid("tokenizer.ggml.model: \"{}\" is not supported (gpt2 and llama are)", vocab.model);
  }
  return std::move(parts).assemble("GGUF vocabulary");
}

}  // namespace atom::text
