// ModelFiles: everything in a model folder or .gguf file that is not tensors, read and checked once.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "checkpoint/gguf_model.h"

namespace atom {

struct ModelFiles {
  std::filesystem::path root;  // the folder, or the .gguf file
  bool is_gguf = false;
  Json config;             // flat: see flatten_config
  Json generation_config;  // null when absent
  Json hf_quant_config;    // null when absent; stands in for a quantization_config that config.json leaves out
  Json tokenizer_config;   // null when absent
  std::optional<std::filesystem::path> tokenizer_json;
  std::optional<GgufTokenizer> gguf_tokenizer;

  std::optional<std::string> chat_template;                          // the default one
  std::vector<std::pair<std::string, std::string>> named_templates;  // others, such as "tool_use"

  // Distinct ids from config.json (text_config too) and generation_config.json, in that order.
  std::vector<int64_t> eos_token_ids;
  // Texts from tokenizer_config.json and special_tokens_map.json. They may name other ids than the above:
  // generation stops on both.
  std::vector<std::string> eos_texts;
  std::optional<std::string> bos_text, pad_text;
};

// Reads config.json and what lies beside it. Throws Error (invalid) naming the file and the remedy.
ModelFiles open_model_files(const std::filesystem::path& path);

// One object for model code. Keys of a nested `text_config` win over the outer ones, except `architectures`,
// `model_type`, `tie_word_embeddings` and `quantization_config`, which the outer object decides when it has
// them. An outer spelling (`torch_dtype`, `rope_theta`...) is dropped when text_config says the same setting
// under any spelling.
Json flatten_config(const Json& config);

}  // namespace atom
