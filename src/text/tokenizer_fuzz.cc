// Fuzzes the tokenizer.json loader; what loads also encodes and decodes a text.
#include "base/error.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace atom::text;
  constexpr std::string_view kText =
      "<s>Hello  w\u00F6rld 12345\n\n a1\u4E2D\u6587 e\u0301 \U0001F600'll <|x|>\xFF aaaaaaaaaaaaaaaa";
  try {
    const auto tokenizer = Tokenizer::from_json({reinterpret_cast<const char*>(data), size}, "fuzz");
    const auto ids = tokenizer->encode(kText);
    const std::string text = tokenizer->decode(ids, false).take();
    tokenizer->encode(kText, {.add_special_tokens = false, .special_in_text = false});
    Detokenizer stream(*tokenizer, false);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.feed(id).take();
    streamed += stream.flush();
    CHECK(streamed == text);
  } catch (const atom::Error&) {
  }
  return 0;
}
