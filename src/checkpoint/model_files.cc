#include "checkpoint/model_files.h"

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/gguf.h"
#include "checkpoint/json_file.h"

namespace atom {
namespace fs = std::filesystem;
namespace {

// Adds the ids that `config` calls eos_token_id: a number, a list of numbers, null or absent.
void add_eos_ids(const Json& config, const std::string& where, std::vector<int64_t>& ids) {
  if (!config.is_object()) return;
  const auto it = config.find("eos_token_id");
  if (it == config.end() || it->is_null()) return;
  const Json list = it->is_array() ? *it : Json::array({*it});
  for (const Json& item : list) {
    if (!item.is_number_integer() ||
        (item.is_number_unsigned() && item.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))) {
      throw invalid("{}: eos_token_id: not a token id or a list of token ids", where);
    }
    const auto id = item.get<int64_t>();
    // Negative numbers are how some writers say "none".
    if (id >= 0 && std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
}

// A special token's text: a string, an object with `content`, or empty for null and absent.
std::optional<std::string> token_text(const Json& file, const char* key, const std::string& where) {
  if (!file.is_object()) return std::nullopt;
  const auto it = file.find(key);
  if (it == file.end() || it->is_null()) return std::nullopt;
  if (it->is_string()) return it->get<std::string>();
  if (it->is_object() && it->contains("content") && (*it)["content"].is_string()) {
    return (*it)["content"].get<std::string>();
  }
  throw invalid("{}: {}: neither a string nor an object with content", where, key);
}

void read_special_texts(const Json& file, const std::string& where, ModelFiles& out) {
  if (auto eos = token_text(file, "eos_token", where)) {
    if (std::find(out.eos_texts.begin(), out.eos_texts.end(), *eos) == out.eos_texts.end()) {
      out.eos_texts.push_back(*std::move(eos));
    }
  }
  if (!out.bos_text) out.bos_text = token_text(file, "bos_token", where);
  if (!out.pad_text) out.pad_text = token_text(file, "pad_token", where);
}

void add_template(std::string name, std::string text, ModelFiles& out) {
  if (name == "default") {
    if (!out.chat_template) out.chat_template = std::move(text);
    return;
  }
  const bool known = std::any_of(out.named_templates.begin(), out.named_templates.end(),
                                 [&](const auto& item) { return item.first == name; });
  if (!known) out.named_templates.emplace_back(std::move(name), std::move(text));
}

// `chat_template` of a JSON file: a string, or a list of {name, template}.
void add_json_templates(const Json& file, const std::string& where, ModelFiles& out) {
  if (!file.is_object()) return;
  const auto it = file.find("chat_template");
  if (it == file.end() || it->is_null()) return;
  if (it->is_string()) return add_template("default", it->get<std::string>(), out);
  const auto bad = [&] {
    return invalid("{}: chat_template: neither a string nor a list of {{name, template}}", where);
  };
  if (!it->is_array()) throw bad();
  for (const Json& item : *it) {
    if (!item.is_object() || !item.contains("name") || !item["name"].is_string() ||
        !item.contains("template") || !item["template"].is_string()) {
      throw bad();
    }
    add_template(item["name"], item["template"], out);
  }
}

// First found wins: .jinja files, tokenizer_config.json, chat_template.json.
void read_templates(const fs::path& folder, ModelFiles& out) {
  constexpr int64_t kMaxTemplateBytes = 4 << 20;
  if (const fs::path path = folder / "chat_template.jinja"; fs::exists(path)) {
    out.chat_template = read_checkpoint_text(path, kMaxTemplateBytes);
  }
  if (const fs::path more = folder / "additional_chat_templates"; fs::is_directory(more)) {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(more)) {
      if (entry.path().extension() == ".jinja") paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    for (const fs::path& path : paths) {
      add_template(path.stem().string(), read_checkpoint_text(path, kMaxTemplateBytes), out);
    }
  }
  add_json_templates(out.tokenizer_config, (folder / "tokenizer_config.json").string(), out);
  const fs::path legacy = folder / "chat_template.json";
  add_json_templates(read_checkpoint_json_if(legacy), legacy.string(), out);
}

Json read_config(const fs::path& folder) {
  const fs::path path = folder / "config.json";
  if (fs::exists(path)) return read_checkpoint_json(path);
  if (fs::exists(folder / "params.json")) {
    throw invalid(
        "{}: config.json is missing: this folder has Mistral's own layout (params.json); use the Hugging "
        "Face "
        "layout",
        folder.string());
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".gguf") continue;
    throw invalid("{}: no config.json; to use the GGUF file give its path: {}", folder.string(),
                  entry.path().string());
  }
  throw invalid("{}: config.json is missing; give the folder of a Hugging Face model", folder.string());
}

ModelFiles open_folder(const fs::path& folder) {
  ModelFiles out;
  out.root = folder;
  const Json config = read_config(folder);
  const std::string where = (folder / "config.json").string();
  out.config = flatten_config(config);
  out.generation_config = read_checkpoint_json_if(folder / "generation_config.json");
  out.hf_quant_config = read_checkpoint_json_if(folder / "hf_quant_config.json");
  if (const Json* q = &out.hf_quant_config;
      q->is_object() && q->contains("quantization") && !out.config.contains("quantization_config")) {
    out.config["quantization_config"] = (*q)["quantization"];
  }
  out.tokenizer_config = read_checkpoint_json_if(folder / "tokenizer_config.json");
  if (const fs::path path = folder / "tokenizer.json"; fs::exists(path)) out.tokenizer_json = path;

  add_eos_ids(config, where, out.eos_token_ids);
  if (config.contains("text_config")) add_eos_ids(config["text_config"], where, out.eos_token_ids);
  add_eos_ids(out.generation_config, (folder / "generation_config.json").string(), out.eos_token_ids);
  read_special_texts(out.tokenizer_config, (folder / "tokenizer_config.json").string(), out);
  const fs::path special = folder / "special_tokens_map.json";
  read_special_texts(read_checkpoint_json_if(special), special.string(), out);
  read_templates(folder, out);
  return out;
}

ModelFiles open_gguf(const fs::path& path) {
  const FileMap map(path);
  GgufModel model = translate_gguf(parse_gguf(map.bytes(), path.string()), map.bytes());
  ModelFiles out;
  out.root = path;
  out.is_gguf = true;
  out.config = std::move(model.config);
  add_eos_ids(out.config, path.string(), out.eos_token_ids);
  GgufTokenizer& tokenizer = model.tokenizer;
  const auto text = [&](std::optional<int64_t> id) {
    return id ? std::optional(tokenizer.tokens[static_cast<size_t>(*id)]) : std::nullopt;
  };
  out.bos_text = text(tokenizer.bos);
  out.pad_text = text(tokenizer.pad);
  if (auto eos = text(tokenizer.eos)) out.eos_texts.push_back(*std::move(eos));
  out.chat_template = tokenizer.chat_template;
  out.named_templates = tokenizer.named_templates;
  out.gguf_tokenizer = std::move(tokenizer);
  return out;
}

}  // namespace

Json flatten_config(const Json& config) {
  const auto nested = config.find("text_config");
  if (nested == config.end() || !nested->is_object()) return config;
  static constexpr std::array kOuterWins = {"architectures", "model_type", "tie_word_embeddings",
                                            "quantization_config"};
  static const std::vector<std::vector<std::string>> kSameSetting = {
      {"dtype", "torch_dtype"}, {"rope_parameters", "rope_scaling", "rope_theta"}};

  const auto said_by_nested = [&](const std::string& key) {
    if (nested->contains(key)) return true;
    for (const auto& group : kSameSetting) {
      if (std::find(group.begin(), group.end(), key) == group.end()) continue;
      return std::any_of(group.begin(), group.end(), [&](const auto& k) { return nested->contains(k); });
    }
    return false;
  };
  Json flat = *nested;
  for (const auto& [key, value] : config.items()) {
    if (key == "text_config") continue;
    const bool outer = std::find(kOuterWins.begin(), kOuterWins.end(), key) != kOuterWins.end();
    if ((outer && !value.is_null()) || !said_by_nested(key)) flat[key] = value;
  }
  return flat;
}

ModelFiles open_model_files(const fs::path& path) {
  try {
    if (fs::is_directory(path)) return open_folder(path);
    if (path.extension() == ".gguf") return open_gguf(path);
    if (fs::exists(path)) {
      throw invalid("{}: neither a folder nor a .gguf file; give the folder of the model", path.string());
    }
    throw invalid("{}: no such folder or file", path.string());
  } catch (const fs::filesystem_error& error) {
    throw invalid("{}: {}", path.string(), error.code().message());
  }
}

}  // namespace atom
