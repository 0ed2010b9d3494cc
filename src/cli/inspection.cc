#include "cli/inspection.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "engine/loaded_model.h"

namespace atom::cli {
namespace {

namespace fs = std::filesystem;

StoredTotals totals_of(const Checkpoint& checkpoint) {
  StoredTotals totals{.from_headers = true, .count = 0, .bytes = 0, .files = checkpoint.files().size()};
  for (const StoredTensor& tensor : checkpoint.tensors()) {
    StoredTotals::Kind& kind = totals.by_dtype[tensor.dtype_name];
    ++kind.count;
    kind.bytes += tensor.bytes;
    ++*totals.count;
    *totals.bytes += tensor.bytes;
  }
  return totals;
}

// Settings that say how weights are stored, from quantization_config or hf_quant_config.json.
Json quantization_of(const ModelFiles& files) {
  const auto copy = [](const Json& from, const char* key, Json& to, const char* name) {
    if (const auto it = from.find(key); it != from.end() && !it->is_null()) to[name] = *it;
  };
  const auto copy_count = [](const Json& from, const char* key, Json& to) {
    if (const auto it = from.find(key); it != from.end() && it->is_array())
      to["excluded_modules"] = it->size();
  };
  Json out;
  if (const auto it = files.config.find("quantization_config"); it != files.config.end() && it->is_object()) {
    copy(*it, "quant_method", out, "method");
    for (const char* key : {"fmt", "format", "quant_algo"}) copy(*it, key, out, "format");
    for (const char* key : {"weight_block_size", "activation_scheme"}) copy(*it, key, out, key);
    for (const char* key : {"modules_to_not_convert", "ignore", "exclude_modules", "exclude"})
      copy_count(*it, key, out);
    if (const auto global = it->find("global_quant_config"); global != it->end() && global->is_object()) {
      if (const auto weight = global->find("weight"); weight != global->end() && weight->is_object())
        copy(*weight, "dtype", out, "format");
    }
  } else if (files.hf_quant_config.is_object()) {
    const Json& outer = files.hf_quant_config;
    if (const auto p = outer.find("producer"); p != outer.end() && p->is_object())
      copy(*p, "name", out, "method");
    if (const auto q = outer.find("quantization"); q != outer.end() && q->is_object()) {
      copy(*q, "quant_algo", out, "format");
      copy(*q, "kv_cache_quant_algo", out, "kv_cache");
      copy_count(*q, "exclude_modules", out);
    }
  }
  return out;
}

bool same_kind(const LayerAnatomy& a, const LayerAnatomy& b) {
  return a.attention == b.attention && a.experts == b.experts && a.indexer == b.indexer &&
         a.window == b.window;
}

// The last layer of the commonest kind.
int64_t typical_layer(const Anatomy& anatomy) {
  struct Kind {
    int64_t last = 0, layers = 0;
  };
  std::vector<Kind> kinds;
  for (size_t i = 0; i < anatomy.layers.size(); ++i) {
    const LayerAnatomy& layer = anatomy.layers[i];
    auto kind = std::find_if(kinds.begin(), kinds.end(),
                             [&](const Kind& k) { return same_kind(layer, anatomy.layers[k.last]); });
    if (kind == kinds.end()) kind = kinds.insert(kinds.end(), Kind{});
    kind->last = static_cast<int64_t>(i);
    ++kind->layers;
  }
  return std::max_element(kinds.begin(), kinds.end(),
                          [](const Kind& a, const Kind& b) { return a.layers < b.layers; })
      ->last;
}

Json counts_by_part(const Anatomy& anatomy, bool active) {
  Json parts = Json::object();
  for (int p = 0; p < kComponents; ++p) {
    const ParameterCount& count = anatomy.components[p];
    if (count.total == 0 || (active && count.active == 0)) continue;
    parts[component_name(static_cast<Component>(p))] = active ? count.active : count.total;
  }
  return parts;
}

Json stored_json(const StoredTotals& totals) {
  Json by_dtype;
  for (const auto& [name, kind] : totals.by_dtype)
    by_dtype[name] = {{"count", kind.count}, {"bytes", kind.bytes}};
  return {{"count", totals.count ? Json(*totals.count) : Json()},
          {"bytes", totals.bytes ? Json(*totals.bytes) : Json()},
          {"by_dtype", by_dtype},
          {"source", totals.from_headers ? "headers"
                     : totals.bytes      ? "parameters and dtype of the config"
                                         : "unknown"}};
}

}  // namespace

Inspection inspect(const ModelFiles& files, std::optional<int64_t> layer) {
  const fs::path named = files.root.has_filename() ? files.root : files.root.parent_path();
  Inspection result{.name = named.filename().string()};
  const std::optional<Checkpoint> checkpoint = open_checkpoint_if(files);
  const LogicalModel model(files.config, {.drafter = has_drafter(files.config), .outlines = true});
  result.anatomy = anatomy(model);
  result.quantization = quantization_of(files);
  if (checkpoint) {
    result.stored = totals_of(*checkpoint);
  } else if (const auto dtype = read_dtype(ConfigReader(files.config));
             dtype && result.quantization.is_null()) {
    result.stored.bytes = dtype_bytes(*dtype, result.anatomy.parameters().total);
  }
  result.unfolded_layer = layer.value_or(typical_layer(result.anatomy));
  const auto layers = static_cast<int64_t>(result.anatomy.layers.size());
  if (result.unfolded_layer < 0 || result.unfolded_layer >= layers)
    throw invalid("--layer {}: the model has layers 0 to {}", result.unfolded_layer, layers - 1);
  result.unfolded = unfold_layer(model, result.unfolded_layer, checkpoint ? &*checkpoint : nullptr);
  return result;
}

Json to_json(const Inspection& inspection) {
  using Indexer = LayerAnatomy::Indexer;
  const Anatomy& a = inspection.anatomy;
  Json layers = Json::array();
  for (size_t i = 0; i < a.layers.size(); ++i) {
    const LayerAnatomy& l = a.layers[i];
    Json entry = {{"index", i},
                  {"attention", attention_name(l.attention)},
                  {"mlp", l.experts ? "experts" : "dense"},
                  {"indexer", l.indexer == Indexer::none  ? Json()
                              : l.indexer == Indexer::own ? Json("full")
                                                          : Json("shared")}};
    if (l.window > 0) entry["window"] = l.window;
    layers.push_back(std::move(entry));
  }
  Json indexer, mtp;
  if (const int64_t own = a.indexers(Indexer::own); own > 0) {
    indexer = {{"full_layers", own}, {"shared_layers", a.indexers(Indexer::shared)}};
  }
  if (a.draft_layers > 0) {
    mtp = {{"layers", a.draft_layers}, {"parameters", a.component(Component::draft_block).total}};
  }
  Json cache = {{"kv_bytes_per_token", a.cache.kv_per_token},
                {"kv_bytes_per_token_fp8", a.cache.can_be_fp8 ? Json(a.cache.kv_per_token / 2) : Json()},
                {"index_bytes_per_token", a.cache.index_per_token},
                {"state_bytes_per_request", a.cache.state_per_request},
                {"sliding_kv_bytes_per_token", a.cache.sliding_per_token}};
  const ParameterCount parameters = a.parameters();
  return {{"architecture", a.architecture},
          {"supported", a.supported},
          {"parameters",
           {{"total", parameters.total},
            {"active_per_token", parameters.active},
            {"by_part", counts_by_part(a, false)},
            {"active_by_part", counts_by_part(a, true)}}},
          {"layers", std::move(layers)},
          {"indexer", std::move(indexer)},
          {"mtp", std::move(mtp)},
          {"cache", std::move(cache)},
          {"quantization", inspection.quantization},
          {"tensors", stored_json(inspection.stored)}};
}

std::string format_count(int64_t count) {
  const auto value = static_cast<double>(count);
  if (count >= 1'000'000'000) return fmt::format("{:.2f} B", value * 1e-9);
  if (count >= 1'000'000) return fmt::format("{:.1f} M", value * 1e-6);
  if (count >= 1'000) return fmt::format("{:.1f} K", value * 1e-3);
  return fmt::format("{}", count);
}

Strip layer_strip(const Anatomy& anatomy) {
  using Attention = LayerAnatomy::Attention;
  using Indexer = LayerAnatomy::Indexer;
  Strip::Row attention{.title = "attention"}, mlp{.title = "mlp"}, indexer{.title = "indexer"};
  const auto put = [](Strip::Row& row, char letter, std::string meaning) {
    row.letters += letter;
    for (const auto& [known, text] : row.legend) {
      if (known == letter) return;
    }
    row.legend.emplace_back(letter, std::move(meaning));
  };
  for (const LayerAnatomy& l : anatomy.layers) {
    switch (l.attention) {
      case Attention::full:
        put(attention, 'F', "full");
        break;
      case Attention::sliding:
        put(attention, 'w', fmt::format("window of {}", l.window));
        break;
      case Attention::latent:
        put(attention, 'L', "latent");
        break;
      case Attention::linear:
        put(attention, '~', "linear, with a recurrent state");
        break;
    }
    l.experts ? put(mlp, 'E', "routed experts") : put(mlp, 'd', "dense");
    if (l.indexer == Indexer::own) put(indexer, 'I', "own indexer");
    if (l.indexer == Indexer::shared) put(indexer, '.', "takes over the selection of the last I");
    if (l.indexer == Indexer::none) indexer.letters += ' ';
  }
  Strip strip{{std::move(attention), std::move(mlp)}};
  if (!indexer.legend.empty()) strip.rows.push_back(std::move(indexer));
  return strip;
}

}  // namespace atom::cli
