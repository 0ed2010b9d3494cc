// What a GGUF file says about its model, in Hugging Face terms: config, tensor names, tokenizer description.
// The one place of this folder that knows architectures, as a table of names: llama and qwen3.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "checkpoint/gguf.h"

namespace atom {

struct GgufTokenizer {
  std::string model;                // "llama" (SentencePiece BPE with scores) or "gpt2" (byte-level BPE)
  std::string pre;                  // pre-tokenizer name such as "llama-bpe", "qwen2"; may be empty
  std::vector<std::string> tokens;  // by id
  std::vector<float> scores;        // empty or one per token
  std::vector<int32_t> types;  // empty or one per token: 1 normal 2 unknown 3 control 4 user 5 unused 6 byte
  std::vector<std::string> merges;  // "left right"
  std::optional<int64_t> bos, eos, unk, eot, eom, pad;
  std::optional<bool> add_bos, add_eos, add_space_prefix;
  std::optional<std::string> chat_template;
  std::vector<std::pair<std::string, std::string>> named_templates;
};

struct GgufModel {
  // config.json keys, `architectures` included and no dtype. For llama files `rope_interleaved` is true:
  // the rows of q and k are stored so that rope rotates neighbouring pairs (2i, 2i + 1).
  Json config;
  GgufTokenizer tokenizer;
};

// `bytes` is the whole file (the values of rope_freqs.weight go into the config). Throws Error (invalid) for
// an architecture or a setting that is not supported.
GgufModel translate_gguf(const GgufFile& file, std::span<const std::byte> bytes);

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight"; empty for a name outside the table.
std::optional<std::string> gguf_to_hf_name(std::string_view gguf_name);

// Why a tensor of the file is of no use to a model; null for all others.
const char* gguf_ignored_reason(std::string_view gguf_name);

}  // namespace atom
