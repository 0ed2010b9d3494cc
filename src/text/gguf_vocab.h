// The vocabulary of a GGUF file, as its metadata gives it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace atom::text {

struct GgufVocab {
  std::string model;  // tokenizer.ggml.model: "gpt2" (byte-level BPE) or "llama" (SentencePiece)
  std::string pre;    // tokenizer.ggml.pre: names the pre-tokenizer of a "gpt2" model
  std::vector<std::string> tokens;  // by id
  std::vector<float> scores;        // of a "llama" model: the highest merges first
  std::vector<int32_t>
      types;  // 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; may be empty
  std::vector<std::string> merges;       // of a "gpt2" model: "left right"
  int32_t bos = -1, eos = -1, unk = -1;  // -1: none
  bool add_bos = false, add_eos = false;
  bool add_space_prefix = true;  // of a "llama" model
};

}  // namespace atom::text
