// ServedModel: the loaded model as the protocols see it. Immutable; read by every HTTP thread.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_thread.h"
#include "engine/text_model.h"
#include "text/grammar_cache.h"
#include "text/response_parser.h"

namespace atom::server {

struct ServedModel {
  std::vector<std::string> names;  // that requests may use; the first is the one that answers carry
  int64_t created = 0;             // seconds since 1970
  const TextModel* text = nullptr;
  EngineThread* engine = nullptr;
  int64_t max_model_len = 0;
  int64_t vocab = 0;
  SamplingParams default_sampling;
  text::FormatChoice format;
  std::shared_ptr<text::GrammarCache> grammars;  // null without a tokenizer
  std::vector<int32_t> turn_end_ids;             // end a chat's answer, beside the checkpoint's own ids
  std::vector<int32_t> visible_ids;              // special tokens that the format's parser must see as text
  Json inspection = Json::object();              // what `atom inspect --json` says about the checkpoint
  Json about = Json::object();  // for people: architecture, sizes, type; shown by the web page

  const std::string& name() const { return names.front(); }
  // Throws ApiError (404) unless `requested` is one of the names.
  void check_name(const std::string& requested) const;
  // Throws ApiError (400) if the model cannot tokenize.
  const text::Tokenizer& tokenizer() const;
  // Throws ApiError (400, context_length_exceeded) if no token fits behind a prompt of this length.
  void check_prompt_length(int64_t tokens) const;
  // True if there is a chat template, and it reads the variable.
  bool template_reads(std::string_view variable) const;
  // Ids of a raw text, with one BOS at most.
  std::vector<int32_t> encode_text(const std::string& text) const;
};

}  // namespace atom::server
