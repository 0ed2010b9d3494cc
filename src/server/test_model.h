// A model that only has a tokenizer (one token per byte, and three control tokens) and a chat template:
// enough to read requests, not to answer them. For tests and fuzz targets only.
#pragma once
#include <memory>
#include <string>

#include "server/served_model.h"

namespace atom::server {

inline constexpr int32_t kTestBos = 256, kTestTurn = 257, kTestEnd = 258, kTestVocab = 259;

inline std::unique_ptr<TextModel> test_text_model() {
  GgufTokenizer tokenizer;
  tokenizer.model = "gpt2";
  tokenizer.pre = "gpt-2";
  int next = 256;  // bytes without a visible character are written as the code points from here on
  for (int byte = 0; byte < 256; ++byte) {
    const bool visible = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    const int code = visible ? byte : next++;
    std::string text;
    if (code < 0x80) {
      text = static_cast<char>(code);
    } else {
      text = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 0x3F))};
    }
    tokenizer.tokens.push_back(text);
    tokenizer.types.push_back(1);
  }
  for (const char* control : {"<|bos|>", "<|turn|>", "<|end|>"}) {
    tokenizer.tokens.push_back(control);
    tokenizer.types.push_back(3);
  }
  tokenizer.bos = kTestBos;
  tokenizer.eos = kTestEnd;
  tokenizer.add_bos = true;
  ModelFiles files;
  files.root = "test";
  files.gguf_tokenizer = tokenizer;
  files.eos_token_ids = {kTestEnd};
  files.chat_template =
      "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% if documents %}{{ documents | tojson "
      "}}{% endif %}"
      "{% for m in messages %}<|turn|>{{ m.role }} {{ m.content }}{{ (m.tool_calls or '') | string "
      "}}<|end|>{% endfor %}"
      "{% if add_generation_prompt %}<|turn|>assistant {{ enable_thinking }}{% endif %}";
  return std::make_unique<TextModel>(files);
}

// `text` must outlive it; there is no engine unless one is given.
inline ServedModel test_model(const TextModel& text, EngineThread* engine = nullptr) {
  ServedModel model;
  model.names = {"m"};
  model.text = &text;
  model.engine = engine;
  model.max_model_len = 4096;
  model.vocab = kTestVocab;
  if (text.has_tokenizer()) {
    model.grammars = std::make_shared<text::GrammarCache>(text.tokenizer(), model.format);
  }
  return model;
}

}  // namespace atom::server
