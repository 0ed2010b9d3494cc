#include "checkpoint/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace atom {
namespace {

constexpr std::string_view kRopeFactors = "rope_freqs.weight";

struct Architecture {
  std::string_view gguf;
  const char* model_type;
  const char* architecture;
  bool interleaved;  // rows of q and k are stored for rotation of neighbouring pairs
};
constexpr Architecture kArchitectures[] = {
    {"llama", "llama", "LlamaForCausalLM", true},
    {"qwen3", "qwen3", "Qwen3ForCausalLM", false},
};

using NamePair = std::pair<std::string_view, std::string_view>;
constexpr NamePair kOuterNames[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
constexpr NamePair kLayerNames[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};

template <size_t N>
std::string_view look_up(const NamePair (&table)[N], std::string_view name) {
  for (const auto& [gguf, hf] : table) {
    if (gguf == name) return hf;
  }
  return {};
}

// The shortest decimal that is the same float: 1e-5f is stored as 9.99999975e-06 when widened.
double widen(double value) {
  const auto narrow = static_cast<float>(value);
  if (static_cast<double>(narrow) != value) return value;
  std::array<char, 64> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), narrow).ptr;
  double shortest = value;
  std::from_chars(text.data(), end, shortest);
  return shortest;
}

// Reads the keys of one architecture ("llama.block_count").
class Keys {
 public:
  Keys(const GgufFile& file, std::string_view prefix) : file_(file), prefix_(prefix) {}

  std::string key(std::string_view name) const { return fmt::format("{}.{}", prefix_, name); }

  template <class... Args>
  Error bad(std::string_view name, fmt::format_string<Args...> format, Args&&... args) const {
    return invalid("{}: key {}: {}", file_.file_name, key(name),
                   fmt::format(format, std::forward<Args>(args)...));
  }

  // A count; some files give a list of one per layer, accepted when all are equal.
  std::optional<int64_t> count_if(std::string_view name) const {
    const GgufValue* value = file_.find(key(name));
    if (value == nullptr) return std::nullopt;
    if (const auto* list = std::get_if<std::vector<int64_t>>(value)) {
      for (const int64_t item : *list) {
        if (item != list->front()) throw bad(name, "differs by layer, which is not supported");
      }
      if (list->empty()) throw bad(name, "an empty list");
      return checked(name, list->front());
    }
    return checked(name, *file_.integer(key(name)));
  }

  int64_t count(std::string_view name) const {
    if (const auto value = count_if(name)) return *value;
    throw bad(name, "this key is required and missing");
  }

  std::optional<double> number_if(std::string_view name) const {
    const auto value = file_.number(key(name));
    if (!value) return std::nullopt;
    if (!std::isfinite(*value)) throw bad(name, "not a finite number");
    return widen(*value);
  }

 private:
  int64_t checked(std::string_view name, int64_t value) const {
    if (value < 0 || value > (int64_t{1} << 40)) throw bad(name, "{} is out of range", value);
    return value;
  }

  const GgufFile& file_;
  std::string prefix_;
};

Json rope_factors(const GgufFile& file, std::span<const std::byte> bytes) {
  const StoredTensor* tensor = file.find_tensor(kRopeFactors);
  if (tensor == nullptr) return nullptr;
  if (tensor->dtype != DType::f32 || tensor->shape.size() != 1 || tensor->bytes > 65536) {
    throw invalid("{}: tensor {} is {}, not a short list of F32", file.file_name, kRopeFactors,
                  to_string(*tensor));
  }
  Json factors = Json::array();
  for (int64_t i = 0; i < tensor->shape[0]; ++i) {
    float factor = 0;
    std::memcpy(&factor, bytes.data() + tensor->offset + i * 4, sizeof factor);
    factors.push_back(factor);
  }
  return factors;
}

// rope_scaling in Hugging Face terms; null when nothing is scaled.
Json rope_scaling(const GgufFile& file, const Keys& keys, std::span<const std::byte> bytes) {
  Json scaling = Json::object();
  const std::string type = file.text(keys.key("rope.scaling.type")).value_or("");
  const std::optional<double> old_factor = keys.number_if("rope.scale_linear");
  const double factor = keys.number_if("rope.scaling.factor").value_or(old_factor.value_or(1.0));
  if (type == "yarn") {
    scaling = {{"rope_type", "yarn"}, {"factor", factor}};
    scaling["original_max_position_embeddings"] =
        keys.count_if("rope.scaling.original_context_length").value_or(keys.count("context_length"));
    if (const auto v = keys.number_if("rope.scaling.yarn_beta_fast")) scaling["beta_fast"] = *v;
    if (const auto v = keys.number_if("rope.scaling.yarn_beta_slow")) scaling["beta_slow"] = *v;
    // The file's value multiplies the default attention factor.
    const auto attn = keys.number_if("rope.scaling.yarn_attn_factor");
    if (const auto v = attn ? attn : keys.number_if("rope.scaling.attn_factor"); v && *v != 1.0) {
      scaling["attention_factor"] = *v * (0.1 * std::log(factor) + 1.0);
    }
  } else if (type == "linear" || (type.empty() && factor != 1.0)) {
    if (factor != 1.0) scaling = {{"rope_type", "linear"}, {"factor", factor}};
  } else if (!type.empty() && type != "none") {
    throw keys.bad("rope.scaling.type", "{} is not supported (none, linear and yarn are)", type);
  }
  if (Json factors = rope_factors(file, bytes); !factors.is_null()) {
    if (scaling.empty()) scaling["rope_type"] = "default";
    scaling["freq_factors"] = std::move(factors);
  }
  return scaling.empty() ? Json() : scaling;
}

void refuse_unsupported(const GgufFile& file, const Keys& keys) {
  if (file.integer("split.count").value_or(1) > 1) {
    throw invalid("{}: one part of a split GGUF; merge the parts into one file first", file.file_name);
  }
  if (keys.count_if("expert_count").value_or(0) > 0) {
    throw keys.bad("expert_count", "mixture-of-experts GGUF files are not supported; use safetensors");
  }
  if (keys.count_if("attention.sliding_window").value_or(0) > 0) {
    throw keys.bad("attention.sliding_window", "sliding windows in GGUF files are not supported");
  }
}

void set_heads(const Keys& keys, Json& config) {
  const int64_t hidden = keys.count("embedding_length");
  const int64_t heads = keys.count("attention.head_count");
  if (heads < 1) throw keys.bad("attention.head_count", "{} is out of range", heads);
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] = keys.count_if("attention.head_count_kv").value_or(heads);
  const std::optional<int64_t> rope_dim = keys.count_if("rope.dimension_count");
  std::optional<int64_t> head_dim = keys.count_if("attention.key_length");
  if (!head_dim) {
    if (hidden % heads != 0 && !rope_dim) {
      throw keys.bad("attention.key_length", "missing, and {} is not divisible by {} heads", hidden, heads);
    }
    head_dim = hidden % heads == 0 ? hidden / heads : *rope_dim;
  }
  if (*head_dim < 1) throw keys.bad("attention.key_length", "{} is out of range", *head_dim);
  if (const auto value_length = keys.count_if("attention.value_length");
      value_length.value_or(*head_dim) != *head_dim) {
    throw keys.bad("attention.value_length", "{} differs from the key length {}", *value_length, *head_dim);
  }
  config["head_dim"] = *head_dim;
  if (rope_dim && *rope_dim != *head_dim) {
    config["partial_rotary_factor"] = static_cast<double>(*rope_dim) / static_cast<double>(*head_dim);
  }
}

Json make_config(const Architecture& arch, const GgufFile& file, std::span<const std::byte> bytes,
                 const GgufTokenizer& tokenizer) {
  const Keys keys(file, arch.gguf);
  refuse_unsupported(file, keys);
  Json config = {{"architectures", {arch.architecture}}, {"model_type", arch.model_type}};
  config["hidden_size"] = keys.count("embedding_length");
  config["intermediate_size"] = keys.count("feed_forward_length");
  config["num_hidden_layers"] = keys.count("block_count");
  set_heads(keys, config);
  config["hidden_act"] = "silu";
  const auto eps = keys.number_if("attention.layer_norm_rms_epsilon");
  if (!eps) throw keys.bad("attention.layer_norm_rms_epsilon", "this key is required and missing");
  config["rms_norm_eps"] = *eps;
  config["max_position_embeddings"] = keys.count("context_length");
  config["rope_theta"] = keys.number_if("rope.freq_base").value_or(10000.0);
  if (Json scaling = rope_scaling(file, keys, bytes); !scaling.is_null()) config["rope_scaling"] = scaling;
  config["rope_interleaved"] = arch.interleaved;
  config["attention_bias"] = file.find_tensor("blk.0.attn_q.bias") != nullptr;
  config["mlp_bias"] = file.find_tensor("blk.0.ffn_gate.bias") != nullptr;
  config["tie_word_embeddings"] = file.find_tensor("output.weight") == nullptr;

  const StoredTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    throw invalid("{}: tensor token_embd.weight is missing or not a matrix", file.file_name);
  }
  config["vocab_size"] = embedding->shape[0];
  if (static_cast<int64_t>(tokenizer.tokens.size()) > embedding->shape[0]) {
    throw invalid("{}: {} tokens but token_embd.weight has {} rows", file.file_name, tokenizer.tokens.size(),
                  embedding->shape[0]);
  }
  if (tokenizer.bos) config["bos_token_id"] = *tokenizer.bos;
  Json stops = Json::array();
  for (const auto& id : {tokenizer.eos, tokenizer.eot, tokenizer.eom}) {
    if (id && std::find(stops.begin(), stops.end(), *id) == stops.end()) stops.push_back(*id);
  }
  config["eos_token_id"] = std::move(stops);
  if (tokenizer.pad) config["pad_token_id"] = *tokenizer.pad;
  return config;
}

template <class T>
std::vector<T> list_of(const GgufFile& file, std::string_view key) {
  const GgufValue* value = file.find(key);
  if (value == nullptr) return {};
  if (const auto* list = std::get_if<std::vector<T>>(value)) return *list;
  throw invalid("{}: key {} holds another type than expected", file.file_name, key);
}

GgufTokenizer read_tokenizer(const GgufFile& file) {
  GgufTokenizer out;
  out.model = file.text("tokenizer.ggml.model").value_or("");
  out.pre = file.text("tokenizer.ggml.pre").value_or("");
  out.tokens = list_of<std::string>(file, "tokenizer.ggml.tokens");
  out.merges = list_of<std::string>(file, "tokenizer.ggml.merges");
  for (const double score : list_of<double>(file, "tokenizer.ggml.scores")) {
    out.scores.push_back(static_cast<float>(score));
  }
  for (const int64_t type : list_of<int64_t>(file, "tokenizer.ggml.token_type")) {
    if (type < 0 || type > 6) {
      throw invalid("{}: key tokenizer.ggml.token_type: {} is not from 0 to 6", file.file_name, type);
    }
    out.types.push_back(static_cast<int32_t>(type));
  }
  const size_t tokens = out.tokens.size();
  if ((!out.scores.empty() && out.scores.size() != tokens) ||
      (!out.types.empty() && out.types.size() != tokens)) {
    throw invalid("{}: {} tokens, {} scores and {} types: the numbers differ", file.file_name, tokens,
                  out.scores.size(), out.types.size());
  }
  const auto id = [&](std::string_view name) -> std::optional<int64_t> {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
    const auto value = file.integer(key);
    if (value == 0xFFFFFFFF || value == -1) return std::nullopt;  // how writers say "none"
    if (value && (*value < 0 || *value >= static_cast<int64_t>(tokens))) {
      throw invalid("{}: key {}: {} is not one of the {} tokens", file.file_name, key, *value, tokens);
    }
    return value;
  };
  out.bos = id("bos");
  out.eos = id("eos");
  out.unk = id("unknown");
  out.eot = id("eot");
  out.eom = id("eom");
  out.pad = id("padding");
  out.add_bos = file.boolean("tokenizer.ggml.add_bos_token");
  out.add_eos = file.boolean("tokenizer.ggml.add_eos_token");
  out.add_space_prefix = file.boolean("tokenizer.ggml.add_space_prefix");
  out.chat_template = file.text("tokenizer.chat_template");
  for (const std::string& name : list_of<std::string>(file, "tokenizer.chat_templates")) {
    if (auto text = file.text("tokenizer.chat_template." + name)) {
      out.named_templates.emplace_back(name, std::move(*text));
    }
  }
  return out;
}

}  // namespace

GgufModel translate_gguf(const GgufFile& file, std::span<const std::byte> bytes) {
  const auto name = file.text("general.architecture");
  if (!name) throw invalid("{}: key general.architecture is missing", file.file_name);
  for (const Architecture& arch : kArchitectures) {
    if (arch.gguf != *name) continue;
    GgufModel model;
    model.tokenizer = read_tokenizer(file);
    model.config = make_config(arch, file, bytes, model.tokenizer);
    return model;
  }
  throw invalid(
      "{}: general.architecture {} is not supported in GGUF form (llama and qwen3 are); use the model's "
      "safetensors",
      file.file_name, *name);
}

std::optional<std::string> gguf_to_hf_name(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view suffix = name.substr(dot);
  if (suffix != ".weight" && suffix != ".bias") return std::nullopt;
  std::string_view stem = name.substr(0, dot);
  if (const std::string_view outer = look_up(kOuterNames, stem); !outer.empty()) {
    return fmt::format("{}{}", outer, suffix);
  }
  if (!stem.starts_with("blk.")) return std::nullopt;
  stem.remove_prefix(4);
  int layer = -1;
  const auto [end, error] = std::from_chars(stem.data(), stem.data() + stem.size(), layer);
  if (error != std::errc() || layer < 0 || (stem[0] == '0' && layer != 0)) return std::nullopt;
  stem.remove_prefix(static_cast<size_t>(end - stem.data()));
  if (!stem.starts_with('.')) return std::nullopt;
  const std::string_view inner = look_up(kLayerNames, stem.substr(1));
  if (inner.empty()) return std::nullopt;
  return fmt::format("model.layers.{}.{}{}", layer, inner, suffix);
}

const char* gguf_ignored_reason(std::string_view name) {
  if (name == kRopeFactors) return "its values are part of the configuration";
  if (name.starts_with("blk.") && name.ends_with(".attn_rot_embd.weight"))
    return "computed from the configuration";
  return nullptr;
}

}  // namespace atom
