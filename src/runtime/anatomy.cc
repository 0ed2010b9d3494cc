#include "runtime/anatomy.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "models/registry.h"

namespace atom {
namespace {

constexpr double kMostParameters = 1e16;  // leaves room for sums of bytes in 64 bits
constexpr int64_t kMaxDraftLayers = 64;

bool has_name(std::string_view path, std::string_view name) {
  for (size_t at = path.find(name); at != std::string_view::npos; at = path.find(name, at + 1)) {
    const size_t end = at + name.size();
    if ((at == 0 || path[at - 1] == '.') && (end == path.size() || path[end] == '.')) return true;
  }
  return false;
}

// A number between two dots after "layers." or "experts.": where it begins and ends.
struct Numbered {
  size_t begin = 0, end = 0;
  int64_t value = 0;
};
std::optional<Numbered> numbered(std::string_view path, std::string_view list) {
  size_t at = path.starts_with(list) ? 0 : path.find("." + std::string(list));
  if (at == std::string_view::npos) return std::nullopt;
  at += list.size() + (at > 0 ? 1 : 0);
  Numbered n{.begin = at};
  const auto [end, error] = std::from_chars(path.data() + at, path.data() + path.size(), n.value);
  n.end = static_cast<size_t>(end - path.data());
  if (error != std::errc{} || n.end == path.size() || path[n.end] != '.') return std::nullopt;
  return n;
}

int64_t elements(const ParamEntry& param) {
  int64_t sum = 0;
  for (const Piece& piece : param.pieces) sum += piece.rows * piece.cols;
  return sum;
}

// An outline says of its layers what caches and weights cannot.
void describe_outline(const Outline& outline, Anatomy& result) {
  result.supported = false;
  result.cache = {.kv_per_token = outline.kv_per_token,
                  .sliding_per_token = outline.sliding_per_token,
                  .index_per_token = outline.index_per_token};
  for (size_t i = 0; i < result.layers.size(); ++i) {
    LayerAnatomy& layer = result.layers[i];
    layer.window = outline.windows[i];
    if (layer.window > 0) layer.attention = LayerAnatomy::Attention::sliding;
  }
}

// Caches are declared in layer order; a layer that owns an indexer declares one more for its keys.
void describe_caches(const ModelTables& tables, Anatomy& result) {
  result.cache.can_be_fp8 =
      std::all_of(tables.caches.begin(), tables.caches.end(),
                  [](const LayerCache& cache) { return cache.fp8 == LayerCache::Fp8::layer_scales; });
  auto cache = tables.caches.begin();
  for (LayerAnatomy& layer : result.layers) {
    if (layer.attention == LayerAnatomy::Attention::linear) continue;
    CHECK(cache != tables.caches.end());
    const int64_t bytes = cache->spec({DType::bf16, DType::bf16}).bytes_per_token;
    result.cache.kv_per_token += bytes;
    if (cache->window > 0) {
      result.cache.sliding_per_token += bytes;
      layer.attention = LayerAnatomy::Attention::sliding;
      layer.window = cache->window;
    }
    ++cache;
    if (layer.indexer != LayerAnatomy::Indexer::own) continue;
    CHECK(cache != tables.caches.end());
    result.cache.index_per_token += cache->heads * outline::index_key_bytes(cache->key_dim);
    ++cache;
  }
  for (const LayerState& state : tables.states) result.cache.state_per_request += state.spec().state_bytes;
}

}  // namespace

const char* component_name(Component component) {
  static constexpr const char* kNames[kComponents] = {
      "routed experts", "shared experts", "dense MLP",   "attention",        "linear attention", "indexer",
      "gate",           "norms",          "lane mixing", "embedding + head", "MTP block"};
  return kNames[static_cast<int>(component)];
}

const char* attention_name(LayerAnatomy::Attention attention) {
  static constexpr const char* kNames[] = {"full", "sliding", "latent", "linear"};
  return kNames[static_cast<int>(attention)];
}

Component component_of(std::string_view path) {
  const auto has = [&](std::string_view name) { return has_name(path, name); };
  if (has("embed_tokens") || has("lm_head")) return Component::vocabulary;
  if (has("experts")) return Component::routed_experts;
  if (has("shared_experts") || has("shared_expert") || has("shared_expert_gate"))
    return Component::shared_experts;
  if (has("indexer")) return Component::indexer;
  if (has("self_attn")) return Component::attention;
  if (has("linear_attn")) return Component::linear_attention;
  if (has("input_layernorm") || has("post_attention_layernorm") || has("norm")) return Component::norms;
  if (has("attn_hc") || has("ffn_hc") || has("hc_head")) return Component::lane_mixing;
  if (has("gate") || has("router") || has("e_score_correction_bias")) return Component::gate;
  return Component::dense_mlp;
}

std::optional<int64_t> layer_of(std::string_view path) {
  const auto n = numbered(path, "layers.");
  return n ? std::optional(n->value) : std::nullopt;
}

ParameterCount Anatomy::parameters() const {
  ParameterCount sum;
  for (const ParameterCount& count : components) {
    sum.total += count.total;
    sum.active += count.active;
  }
  return sum;
}

int64_t Anatomy::indexers(LayerAnatomy::Indexer kind) const {
  return std::count_if(layers.begin(), layers.end(), [&](const auto& l) { return l.indexer == kind; });
}

LogicalModel::LogicalModel(const Json& config, Options options) : config_(config) {
  config_.erase("quantization_config");
  tables_.mesh = options.mesh;
  tables_.stage_partition = std::move(options.stage_partition);
  if (options.outlines) outline_ = declare_outline(Scope(tables_), ConfigReader(config_));
  if (!outline_) {
    tables_.drafter.wanted = options.drafter;
    model_ = make_model(Scope(tables_), ConfigReader(config_));
  }
  double parameters = 0;
  for (const ParamEntry& param : tables_.params) {
    for (const Piece& piece : param.pieces)
      parameters += static_cast<double>(piece.rows) * static_cast<double>(piece.cols);
  }
  if (parameters > kMostParameters) {
    throw invalid(
        "config.json: it describes {:.1e} parameters, more than the {:.1e} that can be counted here",
        parameters, kMostParameters);
  }
}

bool has_drafter(const Json& config) {
  return !LogicalModel(config, {.outlines = true}).tables().drafter.scope.empty();
}

int64_t announced_draft_layers(const Json& json) {
  const ConfigReader config(json);
  return std::max(config.integer_or("num_nextn_predict_layers", 0, 0, kMaxDraftLayers),
                  config.integer_or("mtp_num_hidden_layers", 0, 0, kMaxDraftLayers));
}

bool belongs_to_drafter(const ModelTables& tables, const ParamEntry& param) {
  const std::string& scope = tables.drafter.scope;
  return tables.drafter.wanted && !scope.empty() && param.path.starts_with(scope + ".");
}

Anatomy anatomy(const LogicalModel& model) {
  const ConfigReader config(model.config());
  const ModelTables& tables = model.tables();
  Anatomy result{
      .architecture = config.texts("architectures").front(), .hidden = tables.hidden, .vocab = tables.vocab};
  result.layers.resize(static_cast<size_t>(read_layers(config)));
  int64_t drafter = 0;
  double share = 1;  // of the expert whose parameters are being declared; its biases follow its matrices
  for (const ParamEntry& param : tables.params) {
    if (belongs_to_drafter(tables, param)) {
      drafter += elements(param);
      continue;
    }
    const Component component = component_of(param.path);
    if (component != Component::routed_experts) {
      share = 1;
    } else if (param.kind == ParamEntry::Kind::matrix) {
      share = param.read_share;
    }
    const int64_t total = elements(param);
    const auto active = static_cast<int64_t>(std::llround(share * static_cast<double>(total)));
    const auto add = [&](ParameterCount& count) {
      count.total += total;
      count.active += active;
    };
    add(result.components[static_cast<size_t>(component)]);
    const std::optional<int64_t> layer = layer_of(param.path);
    if (!layer) continue;
    CHECK(*layer < static_cast<int64_t>(result.layers.size()), "{}", param.path);
    LayerAnatomy& l = result.layers[*layer];
    add(l.parameters);
    if (component == Component::linear_attention) l.attention = LayerAnatomy::Attention::linear;
    if (has_name(param.path, "kv_b_proj")) l.attention = LayerAnatomy::Attention::latent;
    if (component == Component::indexer) l.indexer = LayerAnatomy::Indexer::own;
    if (component == Component::routed_experts) l.experts = true;
  }
  if (model.outline()) {
    describe_outline(*model.outline(), result);
    return result;
  }
  if (result.component(Component::indexer).total > 0) {
    for (LayerAnatomy& l : result.layers) {
      if (l.indexer == LayerAnatomy::Indexer::none) l.indexer = LayerAnatomy::Indexer::shared;
    }
  }
  describe_caches(tables, result);
  if (drafter > 0) result.draft_layers = announced_draft_layers(model.config());
  // They are alike; the first drafts for all.
  result.components[static_cast<size_t>(Component::draft_block)].total = result.draft_layers * drafter;
  return result;
}

std::vector<TensorLine> unfold_layer(const LogicalModel& model, int64_t layer, const Checkpoint* checkpoint) {
  std::vector<TensorLine> lines;
  for (const ParamEntry& param : model.tables().params) {
    if (layer_of(param.path) != layer) continue;
    for (const Piece& piece : param.pieces) {
      // The spelling that the checkpoint has, else the first.
      const Source* source = &piece.any_of.front();
      const StoredTensor* stored = nullptr;
      for (const Source& candidate : piece.any_of) {
        if (checkpoint == nullptr || stored != nullptr) break;
        stored = checkpoint->find(candidate.name);
        if (stored != nullptr) source = &candidate;
      }
      TensorLine line{.rows = piece.rows, .cols = piece.cols};
      line.name = source->name.substr(numbered(source->name, "layers.")->end + 1);
      if (const auto expert = numbered(line.name, "experts.")) {
        line.name.replace(expert->begin, expert->end - expert->begin, "*");
      }
      if (stored != nullptr) line.stored = stored->dtype_name;
      const auto same = std::find_if(lines.begin(), lines.end(), [&](const TensorLine& l) {
        return l.name == line.name && l.rows == line.rows && l.cols == line.cols;
      });
      if (same == lines.end()) {
        lines.push_back(std::move(line));
      } else {
        ++same->count;
      }
    }
  }
  return lines;
}

}  // namespace atom
