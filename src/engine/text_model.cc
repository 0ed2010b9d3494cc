#include "engine/text_model.h"

#include <algorithm>

#include "base/error.h"
#include "text/unicode.h"

namespace atom {
namespace {

text::GgufVocab gguf_vocab(const GgufTokenizer& g) {
  text::GgufVocab v;
  v.model = g.model;
  v.pre = g.pre;
  v.tokens = g.tokens;
  v.scores = g.scores;
  v.types = g.types;
  v.merges = g.merges;
  v.bos = static_cast<int32_t>(g.bos.value_or(-1));
  v.eos = static_cast<int32_t>(g.eos.value_or(-1));
  v.unk = static_cast<int32_t>(g.unk.value_or(-1));
  // SentencePiece files add a BOS and a leading space unless they say otherwise.
  const bool sentencepiece = g.model == "llama";
  v.add_bos = g.add_bos.value_or(sentencepiece);
  v.add_eos = g.add_eos.value_or(false);
  v.add_space_prefix = g.add_space_prefix.value_or(sentencepiece);
  return v;
}

std::optional<std::string> token_text(const GgufTokenizer& g, const std::optional<int64_t>& id) {
  if (!id || *id < 0 || *id >= static_cast<int64_t>(g.tokens.size())) return std::nullopt;
  return g.tokens[static_cast<size_t>(*id)];
}

}  // namespace

TextModel::TextModel(const ModelFiles& files) : name_(files.root.string()) {
  if (files.tokenizer_json) {
    tokenizer_ = text::Tokenizer::from_file(*files.tokenizer_json);
    bos_ = files.bos_text;
    pad_ = files.pad_text;
    if (!files.eos_texts.empty()) eos_ = files.eos_texts.front();
  } else if (files.gguf_tokenizer) {
    tokenizer_ = text::Tokenizer::from_gguf(gguf_vocab(*files.gguf_tokenizer));
    bos_ = token_text(*files.gguf_tokenizer, files.gguf_tokenizer->bos);
    eos_ = token_text(*files.gguf_tokenizer, files.gguf_tokenizer->eos);
    pad_ = token_text(*files.gguf_tokenizer, files.gguf_tokenizer->pad);
  }
  if (tokenizer_ != nullptr) guard_.emplace(*tokenizer_);
  for (const int64_t id : files.eos_token_ids) {
    if (id >= 0 && id <= INT32_MAX) eos_ids_.push_back(static_cast<int32_t>(id));
  }
  for (const std::string& text : files.eos_texts) {
    if (tokenizer_ == nullptr) break;
    if (const std::optional<int32_t> id = tokenizer_->token_to_id(text)) eos_ids_.push_back(*id);
  }
  std::sort(eos_ids_.begin(), eos_ids_.end());
  eos_ids_.erase(std::unique(eos_ids_.begin(), eos_ids_.end()), eos_ids_.end());
  if (files.chat_template) {
    template_ = std::make_unique<text::ChatTemplate>(*files.chat_template, name_ + ": chat template");
  }
}

const text::Tokenizer& TextModel::tokenizer() const {
  if (tokenizer_ == nullptr)
    throw invalid("{}: has no tokenizer.json; give --token-ids instead of text", name_);
  return *tokenizer_;
}

const text::ChatTemplate& TextModel::chat_template() const {
  if (template_ == nullptr)
    throw invalid("{}: has no chat template (chat_template.jinja or tokenizer_config.json)", name_);
  return *template_;
}

text::ChatTemplateInputs TextModel::template_inputs() const {
  text::ChatTemplateInputs inputs;
  inputs.bos_token = bos_;
  inputs.eos_token = eos_;
  if (pad_) inputs.special_tokens.emplace_back("pad_token", *pad_);
  return inputs;
}

const text::TemplateTraits& TextModel::traits() const {
  std::call_once(probed_, [&] { traits_ = text::probe_traits(chat_template(), template_inputs()); });
  return traits_;
}

std::string TextModel::render_text(text::ChatTemplateInputs inputs) const {
  return text::render_prompt(chat_template(), traits(), std::move(inputs));
}

TextModel::ChatPrompt TextModel::render_chat(text::ChatTemplateInputs inputs,
                                             bool continue_final_message) const {
  inputs.messages = text::normalize_messages(std::move(inputs.messages), traits());
  const text::Tokenizer& tokenizer = this->tokenizer();
  const std::optional<text::SpecialGuard::Marks> marks = guard_->mark(inputs);
  ChatPrompt prompt{text::render_prompt(chat_template(), traits(), std::move(inputs), continue_final_message),
                    {}};
  std::vector<text::TextRange> plain;
  if (marks) {
    prompt.text = text::repair_utf8(prompt.text);
    plain = text::SpecialGuard::unmark(prompt.text, *marks);
  }
  // As in transformers, the template alone writes the special tokens.
  prompt.ids = tokenizer.encode(prompt.text, {.add_special_tokens = false, .plain = plain});
  return prompt;
}

}  // namespace atom
