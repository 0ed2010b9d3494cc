// The post-processor of a tokenizer.json.
#include "text/post_processor.h"

#include "base/error.h"

namespace atom::text {

PostProcessor::PostProcessor(const Component& config) { add(config); }

void PostProcessor::add(const Component& config) {
  const std::string type = config.type();
  if (type == "Sequence") {
    for (const Component& part : config.children("processors")) add(part);
  } else if (type == "TemplateProcessing") {
    add_template(config);
  } else if (type != "ByteLevel") {  // ByteLevel only moves offsets
    config.unknown_type("TemplateProcessing, ByteLevel, Sequence");
  }
}

void PostProcessor::add_template(const Component& config) {
  std::vector<int32_t> head, tail;
  bool seen_text = false;
  for (const Component& part : config.children("single")) {
    if (part.has("Sequence")) {
      if (seen_text || part.child("Sequence").text("id") != "A") {
        throw invalid("{}: the template for a single text must hold the sequence A once", part.place());
      }
      seen_text = true;
      continue;
    }
    const std::string name = part.child("SpecialToken").text("id");
    const Component token = config.child("special_tokens").child(name);
    const Json& ids = token.member("ids");
    if (!ids.is_array() || ids.size() > 64) throw invalid("{}.ids: expected an array of ids", token.place());
    for (const Json& id : ids) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
        throw invalid("{}.ids: {} is not a token id", token.place(), id.dump().substr(0, 40));
      }
      (seen_text ? tail : head).push_back(id.get<int32_t>());
    }
  }
  if (!seen_text) throw invalid("{}.single: the template lacks the sequence A", config.place());
  before.insert(before.begin(), head.begin(), head.end());
  behind.insert(behind.end(), tail.begin(), tail.end());
}

}  // namespace atom::text
