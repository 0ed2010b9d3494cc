// Fuzzes grammars: the first byte says whether a regular expression, a grammar or a JSON schema follows, up
// to a zero byte; then comes a text. What compiles must mask exactly the tokens that it accepts, wherever the
// text has led.
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "text/ebnf_grammar.h"
#include "text/grammar_matcher.h"
#include "text/json_schema_grammar.h"

namespace {

using namespace atom::text;

std::shared_ptr<const Grammar> compile(int kind, std::string_view source) {
  try {
    auto grammar = kind == 0   ? regex_grammar(source)
                   : kind == 1 ? ebnf_grammar(source)
                               : json_schema_grammar(atom::parse_json(source, "schema"));
    return grammar.ok() ? grammar.value() : nullptr;
  } catch (const atom::Error&) {  // not JSON
    return nullptr;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t zero = std::min(input.find('\0'), input.size());
  const auto grammar = compile(data[0] % 3, input.substr(0, zero));
  if (grammar == nullptr) return 0;
  static const std::vector<std::string_view> tokens = {"a",   "b",   "0",    "1",   "\"",   "{",  "}",  "[",
                                                       "]",   ",",   ":",    " ",   "\n",   "\\", "ab", "\"a",
                                                       "a\"", "{\"", "\": ", "],[", "true", "}}"};
  static const auto trie = std::make_shared<TokenTrie>(tokens);
  GrammarMatcher matcher(std::make_shared<GrammarMasks>(grammar, trie));
  std::string_view text = input.substr(std::min(zero + 1, input.size()));
  text = text.substr(0, 64);
  for (size_t at = 0; at <= text.size(); ++at) {
    uint32_t mask[1];
    matcher.mask(mask);
    bool goes_on = matcher.can_end();  // or might, with fewer readings
    for (size_t id = 0; id < tokens.size(); ++id) {
      const bool accepted = matcher.accept(tokens[id]);
      if (accepted) matcher.rollback(static_cast<int64_t>(tokens[id].size()));
      CHECK(matcher.failed() || accepted == ((mask[0] >> id & 1) != 0), "token {}", id);
      goes_on = goes_on || accepted || matcher.failed();
    }
    for (int byte = 0; byte < 256 && !goes_on; ++byte) {
      const char c = static_cast<char>(byte);
      const bool accepted = matcher.accept({&c, 1});
      goes_on = accepted || matcher.failed();
      if (accepted) matcher.rollback(1);
    }
    CHECK(goes_on, "a dead end");
    if (at == text.size() || !matcher.accept(text.substr(at, 1))) break;
  }
  return 0;
}
