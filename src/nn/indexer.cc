#include "nn/indexer.h"

#include <algorithm>

namespace atom::nn {
namespace {

constexpr float kNormEps = 1e-6f;

std::vector<bool> read_types(const ConfigReader& c, std::string_view key,
                             const std::vector<std::string>& types) {
  std::vector<bool> owner;
  for (const std::string& type : types) {
    const bool full = type == "full" || type == "F";
    if (!full && type != "shared" && type != "S") {
      throw c.error(key, fmt::format("holds {}; known are full and shared", Json(type).dump(-1, ' ', true)));
    }
    owner.push_back(full);
  }
  return owner;
}

}  // namespace

std::vector<bool> index_owners(const ConfigReader& c, int64_t layers) {
  constexpr std::string_view kPattern = "index_topk_pattern";
  std::string_view key = "indexer_types";
  std::vector<bool> owner;
  if (c.has(key)) {
    owner = read_types(c, key, c.texts(key));
  } else if (const Json* pattern = c.find(kPattern)) {
    key = kPattern;
    if (pattern->is_string()) {
      std::vector<std::string> letters;
      for (const char letter : pattern->get<std::string>()) letters.emplace_back(1, letter);
      owner = read_types(c, key, letters);
    } else {
      owner = read_types(c, key, c.texts(key));
    }
  } else {
    key = "index_skip_topk_offset";
    const int64_t frequency = std::max<int64_t>(1, c.integer_or("index_topk_freq", 1));
    const int64_t offset = c.integer_or(key, 2);
    for (int64_t i = 0; i < layers; ++i)
      owner.push_back(std::max<int64_t>(i - offset + 1, 0) % frequency == 0);
  }
  if (static_cast<int64_t>(owner.size()) != layers) {
    throw c.error(key, fmt::format("says something of {} layers; the model has {}", owner.size(), layers));
  }
  if (!owner.front())
    throw c.error(key, "the first layer has no layer before it whose choice it could share");
  return owner;
}

IndexerConfig read_indexer(const ConfigReader& c, int64_t layers) {
  constexpr int64_t kMaxDim = 1 << 16;
  IndexerConfig config;
  config.shape = {.heads = static_cast<int32_t>(c.integer("index_n_heads", 1, kMaxDim)),
                  .head_dim = static_cast<int32_t>(c.integer("index_head_dim", 1, kMaxDim)),
                  .rope_dim = static_cast<int32_t>(c.integer("qk_rope_head_dim", 1, kMaxDim))};
  if (config.shape.rope_dim > config.shape.head_dim) {
    throw c.error("index_head_dim", fmt::format("{} is less than qk_rope_head_dim {}", config.shape.head_dim,
                                                config.shape.rope_dim));
  }
  config.topk = c.integer("index_topk", 1, 1 << 24);
  config.owner = index_owners(c, layers);
  config.share_between_drafts = c.boolean_or("index_share_for_mtp_iteration", false);
  return config;
}

int declare_selection(const Scope& s, const IndexerConfig& config, int64_t layer) {
  if (config.drafter(layer)) {
    return s.carry(
        {.name = "drafter's selection", .cols = config.topk, .drafts = config.share_between_drafts});
  }
  const auto layers = static_cast<int64_t>(config.owner.size());
  const Range stage = s.stage_layers(layers);
  const int64_t next = layer + 1;
  return s.carry({.name = "selection",
                  .cols = config.topk,
                  .received = layer == stage.begin && config.shared(layer),
                  .sent = next == stage.begin + stage.count && next < layers && config.shared(next)});
}

Indexer::Indexer(Scope s, int64_t hidden, int64_t q_rank, const ops::RopeParameters& rope,
                 const IndexerConfig& config)
    : path_(s.path()),
      config_(config),
      rope_(s.rope(rope)),
      cache_(s.cache({.heads = 1, .key_dim = config.shape.head_dim, .fp8 = LayerCache::Fp8::key_scales})),
      q_(s, Axis::none, q_rank, {{"wq_b", int64_t{config.shape.heads} * config.shape.head_dim}}, false),
      key_weights_(s, Axis::none, hidden,
                   {{"wk", config.shape.head_dim}, {"weights_proj", config.shape.heads}}, false),
      norm_weight_((s / "k_norm").vector("weight", config.shape.head_dim)),
      norm_bias_((s / "k_norm").vector("bias", config.shape.head_dim)) {
  s.needs<ops::IndexSelect>("the indexer of sparse attention");
}

void Indexer::operator()(Ctx& c, Tensor x, Tensor q, Tensor selected) const {
  const KvPool& pool = c.cache(cache_);
  const ops::AttentionBatch& batch = c.attention(pool);
  const Tensor queries = q_(c, q);
  const Tensor key_weights = key_weights_(c, x);
  ops::run(c.stream, ops::IndexStore{.q = queries,
                                     .k = key_weights.cols(0, config_.shape.head_dim),
                                     .norm_weight = norm_weight_,
                                     .norm_bias = norm_bias_,
                                     .cache = pool.k,
                                     .batch = &batch,
                                     .rope = c.rope(rope_),
                                     .shape = config_.shape,
                                     .rope_interleaved = config_.rope_interleaved,
                                     .norm_eps = kNormEps,
                                     .scales = pool.key_scales});
  // Scores have a constant factor in the paper, heads^-1/2 * head_dim^-1/2, which does not change the choice.
  ops::run(c.stream,
           ops::IndexSelect{.out = selected,
                            .q = queries,
                            .weights = key_weights.cols(config_.shape.head_dim, config_.shape.heads),
                            .cache = pool.k,
                            .batch = &batch,
                            .shape = config_.shape,
                            .scales = pool.key_scales});
  c.observe(Observer::Choice::positions, path_, selected);
}

}  // namespace atom::nn
