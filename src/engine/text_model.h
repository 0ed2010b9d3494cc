// What a model folder says besides tensors: tokenizer, chat template and the ids that end a text.
#pragma once
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/model_files.h"
#include "text/chat_messages.h"
#include "text/chat_template.h"
#include "text/special_guard.h"
#include "text/tokenizer.h"

namespace atom {

class TextModel {
 public:
  explicit TextModel(const ModelFiles& files);

  bool has_tokenizer() const { return tokenizer_ != nullptr; }
  // Throws Error (invalid) naming the folder if it has none.
  const text::Tokenizer& tokenizer() const;
  // Null without a tokenizer.
  const text::Tokenizer* tokenizer_if() const { return tokenizer_.get(); }

  bool has_chat_template() const { return template_ != nullptr; }
  const text::ChatTemplate& chat_template() const;  // throws Error (invalid) if there is none
  // Inputs with the checkpoint's special tokens filled in.
  text::ChatTemplateInputs template_inputs() const;
  struct ChatPrompt {
    std::string text;
    std::vector<int32_t> ids;
  };
  // The prompt of a conversation in the shapes that clients send. Throws Error (invalid).
  std::string render_text(text::ChatTemplateInputs inputs) const;
  // The same and its ids: special tokens that the
  // template writes are special, those spelled out in messages, tools and documents stay text, and no second
  // BOS is put before one that the template wrote. See text::render_prompt for `continue_final_message`.
  // Throws Error (invalid).
  ChatPrompt render_chat(text::ChatTemplateInputs inputs, bool continue_final_message = false) const;
  std::vector<int32_t> encode_chat(const text::ChatTemplateInputs& inputs) const {
    return render_chat(inputs).ids;
  }

  // Ends of a text, from every file that may carry them; ascending.
  const std::vector<int32_t>& eos_ids() const { return eos_ids_; }

 private:
  const text::TemplateTraits& traits() const;

  std::string name_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<text::ChatTemplate> template_;
  std::optional<text::SpecialGuard> guard_;  // of tokenizer_
  // What the template makes of clients' shapes: found by rendering, so only when a conversation first needs
  // it.
  mutable std::once_flag probed_;
  mutable text::TemplateTraits traits_;
  std::optional<std::string> bos_, eos_, pad_;
  std::vector<int32_t> eos_ids_;
};

}  // namespace atom
