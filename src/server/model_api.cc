#include "server/model_api.h"

#include <fmt/format.h>

#include "server/chat_task.h"
#include "server/completions_api.h"
#include "server/openai_form.h"

namespace atom::server {
namespace {

constexpr size_t kMaxTokens = 1'000'000;

Json entry(const ServedModel& model, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "atom"},
          {"max_model_len", model.max_model_len},
          {"about", model.about}};
}

}  // namespace

Reply json_reply(const Json& body, int status) { return {ReplyHead{.status = status}, dump(body)}; }

Json model_list(const ServedModel& model) {
  Json data = Json::array();
  for (const std::string& name : model.names) data.push_back(entry(model, name));
  return {{"object", "list"}, {"data", std::move(data)}};
}

Json model_entry(const ServedModel& model, const std::string& name) {
  model.check_name(name);
  return entry(model, name);
}

Json tokenize(const Json& body, const ServedModel& model) {
  Fields fields(body);
  if (const auto name = fields.text("model")) model.check_name(*name);
  const bool strings = fields.boolean("return_token_strs").value_or(false);
  std::vector<int32_t> ids;
  if (const Json* messages = fields.array("messages", 10000)) {
    ChatTask task = new_task(model);
    task.inputs.messages = *messages;
    if (const Json* tools = fields.find("tools")) set_tools(task, model, *tools);
    if (const Json* variables = fields.object("chat_template_kwargs"))
      set_template_variables(task, *variables);
    task.inputs.add_generation_prompt = fields.boolean("add_generation_prompt").value_or(true);
    fields.done();
    prepare(task, model);
    ids = std::move(task.request.prompt);
  } else {
    const bool special = fields.boolean("add_special_tokens").value_or(true);
    const std::string prompt = fields.required_text("prompt");
    fields.done();
    ids =
        special ? model.encode_text(prompt) : model.tokenizer().encode(prompt, {.add_special_tokens = false});
  }
  if (ids.size() > kMaxTokens) {
    throw ApiError(400, "too_many_tokens",
                   fmt::format("these are {} tokens; at most {} are told", ids.size(), kMaxTokens));
  }
  Json result = {{"count", ids.size()}, {"max_model_len", model.max_model_len}, {"tokens", ids}};
  if (strings) {
    result["token_strs"] = Json::array();
    for (const int32_t id : ids) result["token_strs"].push_back(model.tokenizer().id_to_token(id));
  }
  return result;
}

Json detokenize(const Json& body, const ServedModel& model) {
  Fields fields(body);
  if (const auto name = fields.text("model")) model.check_name(*name);
  const Json* tokens = fields.array("tokens", kMaxTokens);
  if (tokens == nullptr) throw ApiError(400, "missing_field", "tokens: is required", "tokens");
  fields.done();
  std::vector<int32_t> ids;
  for (size_t i = 0; i < tokens->size(); ++i) {
    ids.push_back(read_token_id((*tokens)[i], model, fmt::format("tokens[{}]", i)));
  }
  Result<std::string> text = model.tokenizer().decode(ids, false);
  if (!text) throw from_error(text.error());
  return {{"prompt", text.value()}};
}

void refuse_embeddings(const ServedModel& model) {
  throw ApiError(
      400, "model_not_supported",
      fmt::format("\"{}\" generates text and has no embeddings; serve an embedding model", model.name()),
      "model");
}

}  // namespace atom::server
