// Byte-pair encoding: from words to token ids.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe_vocab.h"

namespace atom::text {

struct BpeOptions {
  bool reads_bytes = false;    // words are raw bytes; the vocabulary writes them in the byte alphabet
  bool ignore_merges = false;  // a word that is a token is taken whole
  bool byte_fallback = false;  // a character without a token becomes its bytes' <0xXX> tokens
  bool fuse_unk = false;       // neighbouring unknown characters become one unknown token
  int32_t unk_id = kNoToken;   // none: unknown characters are left out
};

// Working memory with a bounded cache of words; one per thread and per model.
class BpeScratch {
 public:
  BpeScratch() : words_(kWords) {}
  void trim();  // lets go of the memory that a huge word took

 private:
  friend class Bpe;
  static constexpr size_t kKeptItems = 1 << 16;
  static constexpr size_t kWords = 1 << 14;
  struct Word {  // one cache line
    uint8_t bytes = 0, ids = 0;
    char text[38];
    int32_t id[6];
  };
  struct Symbol {
    int32_t id;
    int32_t previous, next;     // -1: none
    MergeTable::Target target;  // of this symbol and the next one
  };
  std::vector<Word> words_;
  std::vector<int32_t> ids_;
  std::vector<Symbol> symbols_;
  std::string chars_;
};

// Immutable, so safe from many threads, each with its own scratch.
class Bpe {
 public:
  // `excluded` ids never come out of a word: only an added token gives them.
  Bpe(Vocab vocab, std::vector<Merge> merges, BpeOptions options, const std::vector<int32_t>& excluded);

  const Vocab& vocab() const { return vocab_; }

  // Appends the ids of one pre-tokenized piece. O(n log n) in its bytes.
  void encode(std::string_view piece, std::vector<int32_t>& out, BpeScratch& scratch) const;

 private:
  void encode_word(std::string_view word, std::vector<int32_t>& out, BpeScratch& scratch) const;
  void encode_new_word(std::string_view word, std::vector<int32_t>& out, BpeScratch& scratch) const;
  int32_t find_token(std::string_view text) const;
  void characters_to_ids(std::string_view word, std::vector<int32_t>& ids) const;
  void merge_short(std::vector<int32_t>& ids) const;
  void merge_long(std::vector<int32_t>& ids, BpeScratch& scratch) const;
  bool merges_never_cross_marks(const std::vector<Merge>& merges) const;

  Vocab vocab_;
  MergeTable merges_;
  BpeOptions options_;
  std::array<int32_t, 256> byte_ids_{};  // of single bytes: of the byte alphabet, or of <0xXX>
  bool has_all_bytes_ = false;
  bool cuts_at_marks_ = false;
  std::vector<bool> excluded_;  // by id
};

}  // namespace atom::text
