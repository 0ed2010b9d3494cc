// What a Tokenizer is made of; shared by its loaders.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"

namespace atom::text {

struct TokenizerParts {
  Vocab vocab;  // of the model; assemble() puts the added tokens in
  std::vector<Merge> merges;
  BpeOptions bpe;
  Normalizer normalizer;
  std::vector<AddedToken> added;
  PreTokenizer pre_tokenizer;
  PostProcessor post_processor;
  Decoder decoder;

  // Throws Error (invalid) that begins with `name` if the parts do not fit together.
  std::unique_ptr<Tokenizer> assemble(std::string_view name) &&;
};

struct Tokenizer::Impl {
  struct Scratch {
    BpeScratch bpe;
    RegexScratch regex;
    std::string text;
    std::vector<AddedTokens::Section> sections, inner_sections;
    std::vector<Piece> pieces;
  };
  // Borrows working memory, so that its word cache outlives a call and no call waits for another.
  class Loan {
   public:
    explicit Loan(const Impl& impl);
    ~Loan();
    Scratch& operator*() const { return *scratch_; }

   private:
    const Impl& impl_;
    std::unique_ptr<Scratch> scratch_;
  };

  Impl(Bpe model, AddedTokens added_tokens, TokenizerParts& parts, std::string_view name);
  void encode_text(std::string_view text, bool opens_text, bool special_in_text, std::vector<int32_t>& out,
                   Scratch& scratch) const;
  void encode_words(std::string_view text, bool opens_text, std::vector<int32_t>& out,
                    Scratch& scratch) const;
  void append_bytes(int32_t id, bool opens_text, std::string& out, RegexScratch& scratch) const;
  std::string_view bytes_of(int32_t id) const;

  Normalizer normalizer;
  AddedTokens added;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  PostProcessor post_processor;
  Decoder decoder;
  std::vector<bool> is_added;          // by id
  std::string token_bytes;             // of all ids, in the middle of a text
  std::vector<uint32_t> token_begins;  // id's bytes are [token_begins[id], token_begins[id + 1])

  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<Scratch>> idle;
};

}  // namespace atom::text
