#include "nn/deepseek_moe.h"

namespace atom::nn {

std::vector<bool> expert_layers(const ConfigReader& c, int64_t layers) {
  constexpr std::string_view kTypes = "mlp_layer_types";
  std::vector<bool> sparse;
  if (c.has(kTypes)) {
    for (const std::string& type : c.texts(kTypes)) {
      if (type != "dense" && type != "sparse") {
        throw c.error(kTypes,
                      fmt::format("holds {}; known are dense and sparse", Json(type).dump(-1, ' ', true)));
      }
      sparse.push_back(type == "sparse");
    }
    if (static_cast<int64_t>(sparse.size()) != layers) {
      throw c.error(kTypes,
                    fmt::format("says something of {} layers; the model has {}", sparse.size(), layers));
    }
    return sparse;
  }
  const int64_t dense = c.integer_or("first_k_dense_replace", 3);
  const int64_t frequency = c.integer_or("moe_layer_freq", 1, 1);
  for (int64_t i = 0; i < layers; ++i) sparse.push_back(i >= dense && i % frequency == 0);
  return sparse;
}

MoeConfig read_deepseek_moe(const ConfigReader& c) {
  if (c.text_or("scoring_func", "sigmoid") != "sigmoid")
    throw c.error("scoring_func", "only sigmoid is supported");
  if (c.text_or("topk_method", "noaux_tc") != "noaux_tc")
    throw c.error("topk_method", "only noaux_tc is supported");
  MoeConfig moe;
  moe.router.experts = c.integer("n_routed_experts", 1, kMaxExperts);
  moe.router.top_k = c.integer("num_experts_per_tok", 1, moe.router.experts);
  moe.router.score = ops::RouterScore::sigmoid;
  moe.router.renormalize = c.boolean_or("norm_topk_prob", true);
  moe.router.scale = static_cast<float>(c.number_or("routed_scaling_factor", 2.5));
  moe.router.groups = c.integer("n_group", 1, moe.router.experts);
  moe.router.top_groups = c.integer("topk_group", 1, moe.router.groups);
  moe.router.correction = "gate.e_score_correction_bias";
  const int64_t group_size = moe.router.experts / moe.router.groups;
  if (moe.router.experts % moe.router.groups != 0 || moe.router.top_k > moe.router.top_groups * group_size) {
    throw c.error("n_group", fmt::format("{} experts in {} groups, {} of them open, cannot give {} experts",
                                         moe.router.experts, moe.router.groups, moe.router.top_groups,
                                         moe.router.top_k));
  }
  moe.experts.inter = c.integer("moe_intermediate_size", 1);
  const int64_t shared = c.integer_or("n_shared_experts", 1, 0, 1 << 10);
  if (shared > 0) moe.shared = SharedExpertConfig{.inter = shared * moe.experts.inter};
  return moe;
}

}  // namespace atom::nn
