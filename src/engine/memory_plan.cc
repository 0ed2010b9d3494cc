#include "engine/memory_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/search.h"
#include "base/text_util.h"
#include "engine/weight_sizes.h"
#include "runtime/anatomy.h"
#include "runtime/cache_scales.h"

namespace atom {
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kShortestListed = 1024;    // tokens: contexts from here on are listed
constexpr int64_t kMostSequences = 1 << 20;  // as the cache planner allows

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

int64_t saturating_mul(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? kMax : product;
}
int64_t saturating_add(int64_t a, int64_t b) { return a > kMax - b ? kMax : a + b; }

void check_limits(const CacheLimits& limits) {
  const auto in_range = [](const char* flag, int64_t value, int64_t most) {
    if (value < 1 || value > most) throw invalid("{} {}: must be from 1 to {}", flag, value, most);
  };
  in_range("--block-size", limits.block_size, 1 << 16);
  in_range("--max-model-len", limits.max_model_len, std::numeric_limits<int32_t>::max());
  in_range("--max-num-seqs", limits.max_num_seqs, kMostSequences);
  in_range("--max-num-batched-tokens", limits.max_num_batched_tokens, std::numeric_limits<int32_t>::max());
}

// A rank that declares its share and never computes.
class DeclaredRank final : public Communicator {
 public:
  DeclaredRank(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  void all_reduce(Stream&, Tensor) override { CHECK(false, "a declared rank has no peers"); }
  void all_gather(Stream&, Tensor, Tensor) override { CHECK(false, "a declared rank has no peers"); }
  void send(Stream&, Tensor, int) override { CHECK(false, "a declared rank has no peers"); }
  void recv(Stream&, Tensor, int) override { CHECK(false, "a declared rank has no peers"); }

 private:
  int rank_, size_;
};

// What one rank holds, before the number of sequences is known.
struct Share {
  int stage, rank;
  int64_t weights = 0, drafter_weights = 0;
  std::vector<CacheSpec> cache;
  std::string cache_types;
  int64_t row_bytes = 0;        // workspace of one row of a step
  int64_t logit_row_bytes = 0;  // of one row whose logits are wanted
};

struct LocalSize {
  int64_t rows, cols;
};

LocalSize local_size(const Piece& piece, const Mesh& mesh) {
  const auto size_on = [&](const Communicator& axis) {
    const std::string& name = piece.any_of.front().name;
    LocalSize size{piece.rows, piece.cols};
    if (piece.shard.dim == 0)
      size.rows = local_range(piece.rows, piece.shard, axis.rank(), axis.size(), name).count;
    if (piece.shard.dim == 1)
      size.cols = local_range(piece.cols, piece.shard, axis.rank(), axis.size(), name).count;
    return size;
  };
  switch (piece.shard.axis) {
    case Axis::attn:
      return size_on(*mesh.attn);
    case Axis::mlp:
      return size_on(*mesh.mlp);
    case Axis::expert:
      return size_on(*mesh.expert);
    case Axis::expert_mlp:
      return size_on(*mesh.expert_mlp);
    case Axis::none:
      break;
  }
  return {piece.rows, piece.cols};
}

// f32 values that one row of a step makes in its widest block: what goes into each matrix that is cut by its
// input, and what comes out of all; of routed experts those that are chosen.
int64_t widest_block(const ModelTables& tables) {
  std::map<std::pair<int64_t, bool>, double> widths;  // by layer; attention or feed-forward
  for (const ParamEntry& param : tables.params) {
    const std::optional<int64_t> layer = layer_of(param.path);
    if (!layer || param.kind != ParamEntry::Kind::matrix) continue;
    const Component component = component_of(param.path);
    const bool mixes = component == Component::attention || component == Component::linear_attention ||
                       component == Component::indexer;
    double& width = widths[{*layer, mixes}];
    for (const Piece& piece : param.pieces) {
      const LocalSize local = local_size(piece, tables.mesh);
      width += param.read_share * static_cast<double>(local.rows + (piece.shard.dim == 1 ? local.cols : 0));
    }
  }
  double most = 0;
  for (const auto& [block, width] : widths) most = std::max(most, width);
  return static_cast<int64_t>(std::ceil(most));
}

Share share_of(const LogicalModel& model, const WeightSizes& sizes, const MemoryRequest& request) {
  const ModelTables& tables = model.tables();
  const Mesh& mesh = tables.mesh;
  Share share{.stage = mesh.stage, .rank = mesh.attn->rank()};
  double weights = 0, drafter = 0;
  for (const ParamEntry& param : tables.params) {
    double bytes = 0;
    for (const Piece& piece : param.pieces) {
      const LocalSize local = local_size(piece, mesh);
      bytes += sizes.bytes_per_element(param, piece) * static_cast<double>(local.rows * local.cols);
    }
    weights += bytes;
    if (belongs_to_drafter(tables, param)) drafter += bytes;
  }
  share.weights = std::llround(weights);
  share.drafter_weights = std::llround(drafter);
  require_cache_types(tables, request.cache);
  share.cache_types = cache_types_text(tables, request.cache);
  for (const LayerCache& cache : tables.caches) share.cache.push_back(cache.spec(request.cache));
  for (const LayerState& state : tables.states) share.cache.push_back(state.spec());
  // The stream, and two blocks whose halves of the step's memory alternate.
  share.row_bytes = 4 * (tables.hidden + 2 * widest_block(tables));
  for (const Carry& carry : tables.carries) share.row_bytes += 4 * carry.cols;
  if (request.drafts > 0) {
    // What verification may take back, and the hidden states that the drafter goes on from.
    for (const LayerState& state : tables.states) share.row_bytes += 4 * state.row;
    if (mesh.last_stage()) share.row_bytes += 4 * tables.hidden;
  }
  if (!mesh.first_stage()) share.row_bytes += 4 * tables.hidden;
  if (mesh.last_stage()) {
    const int64_t gathered = mesh.mlp->size() > 1 ? ceil_div(tables.vocab, mesh.mlp->size()) : 0;
    share.logit_row_bytes = 4 * (tables.hidden + tables.vocab + gathered);
  }
  return share;
}

// One declaration per rank. Expert groups lie as the workers lay them.
std::vector<Share> shares(const Json& config, const WeightSizes& sizes, const MemoryRequest& request) {
  const ParallelOptions& p = request.parallel;
  if (p.tp < 1 || p.pp < 1 || p.tp * p.pp > 256)
    throw invalid("tp {} and pp {}: both at least 1, at most 256 ranks", p.tp, p.pp);
  if (p.ep < 1 || p.tp % p.ep != 0) throw invalid("--ep {}: must divide --tp {}", p.ep, p.tp);
  const int per_expert = p.tp / p.ep;
  std::vector<Share> all;
  for (int stage = 0; stage < p.pp; ++stage) {
    for (int rank = 0; rank < p.tp; ++rank) {
      DeclaredRank tensor(rank, p.tp), expert(rank / per_expert, p.ep),
          expert_mlp(rank % per_expert, per_expert), pipeline(stage, p.pp);
      const Mesh mesh{.attn = &tensor,
                      .mlp = &tensor,
                      .expert = &expert,
                      .expert_mlp = &expert_mlp,
                      .stages_comm = &pipeline,
                      .stage = stage,
                      .stages = p.pp};
      all.push_back(share_of(
          LogicalModel(config,
                       {.drafter = request.drafts > 0, .mesh = mesh, .stage_partition = p.stage_partition}),
          sizes, request));
    }
  }
  return all;
}

class Planner {
 public:
  Planner(const std::vector<Share>& shares, const MemoryRequest& request)
      : shares_(shares), request_(request) {}

  RankBill bill(const Share& share, int64_t tokens, int64_t sequences) const {
    const int64_t rows = request_.limits.max_num_batched_tokens;
    RankBill bill{.stage = share.stage,
                  .rank = share.rank,
                  .weights = share.weights,
                  .drafter_weights = share.drafter_weights};
    bill.cache = cache_lines(share.cache, request_.limits, tokens, sequences);
    const int64_t logit_rows = std::min(rows, saturating_mul(sequences, 1 + request_.drafts));
    bill.workspace = rows * share.row_bytes + logit_rows * share.logit_row_bytes;
    return bill;
  }

  bool fits(int64_t tokens, int64_t sequences) const {
    return request_.device_memory == 0 ||
           std::all_of(shares_.begin(), shares_.end(), [&](const Share& share) {
             return bill(share, tokens, sequences).total() <= request_.device_memory;
           });
  }
  int64_t most_sequences(int64_t tokens, int64_t most) const {
    return largest_that_fits(most, [&](int64_t sequences) { return fits(tokens, sequences); });
  }
  int64_t longest(int64_t most) const {
    const int64_t block = request_.limits.block_size;
    const int64_t blocks =
        largest_that_fits(ceil_div(most, block), [&](int64_t n) { return fits(n * block, 1); });
    return std::min(most, blocks * block);
  }

  // The rank that needs most for one sequence.
  RankBill fullest(int64_t tokens) const {
    RankBill most;
    for (const Share& share : shares_) {
      RankBill b = bill(share, tokens, 1);
      if (b.total() > most.total()) most = std::move(b);
    }
    return most;
  }

 private:
  const std::vector<Share>& shares_;
  const MemoryRequest& request_;
};

std::string rank_name(const RankBill& bill, const ParallelOptions& parallel) {
  if (parallel.tp * parallel.pp == 1) return "the model";
  return fmt::format("rank {} of stage {}", bill.rank, bill.stage);
}

void require_one_sequence(const Planner& planner, const MemoryRequest& request, int64_t longest) {
  const RankBill bill = planner.fullest(request.limits.max_model_len);
  const std::string memory = format_bytes(request.device_memory);
  const std::string name = rank_name(bill, request.parallel);
  if (longest == 0) {
    throw invalid(
        "--device-memory {}: {} needs {} for weights and {} of workspace, which leave no room for a token; "
        "use more "
        "ranks (--tp, --pp, --ep), a smaller storage format, or larger devices",
        memory, name, format_bytes(bill.weights), format_bytes(bill.workspace));
  }
  throw invalid(
      "--device-memory {}: one sequence of {} tokens does not fit: {} needs {} for weights, {} of workspace "
      "and {} of "
      "cache; lower --max-model-len to {}, the largest that fits, or use more ranks or larger devices",
      memory, request.limits.max_model_len, name, format_bytes(bill.weights), format_bytes(bill.workspace),
      format_bytes(bill.cache_bytes()), longest);
}

}  // namespace

int64_t CacheLine::bytes() const { return saturating_mul(layers * bytes_per_token, tokens); }

int64_t RankBill::cache_bytes() const {
  int64_t sum = 0;
  for (const CacheLine& line : cache) sum = saturating_add(sum, line.bytes());
  return sum;
}

int64_t RankBill::total() const { return saturating_add(saturating_add(weights, workspace), cache_bytes()); }

std::vector<CacheLine> cache_lines(const std::vector<CacheSpec>& specs, const CacheLimits& limits,
                                   int64_t tokens, int64_t sequences) {
  const int64_t block = limits.block_size;
  std::vector<CacheLine> lines;
  for (const CacheSpec& spec : specs) {
    CacheLine line{
        .kind = spec.kind, .layers = 1, .window = spec.window, .bytes_per_token = spec.bytes_per_token};
    if (spec.kind == CacheKind::state) {
      line.bytes_per_token = spec.state_bytes;
      line.tokens = sequences;
    } else {
      int64_t blocks = sequences * ceil_div(tokens, block);
      if (spec.kind == CacheKind::window && spec.window < tokens) {
        // What a sequence holds between steps, and the tokens of one step, which all sequences share.
        const int64_t held = most_blocks_held(spec.window, block, tokens, 1);
        blocks = std::min(blocks, sequences * held + ceil_div(limits.max_num_batched_tokens, block));
      }
      line.tokens = blocks * block;
    }
    const auto same = std::find_if(lines.begin(), lines.end(), [&](const CacheLine& l) {
      return l.kind == line.kind && l.window == line.window && l.bytes_per_token == line.bytes_per_token;
    });
    if (same == lines.end()) {
      lines.push_back(line);
    } else {
      ++same->layers;
    }
  }
  return lines;
}

MemoryPlan plan_memory(const ModelFiles& files, const Checkpoint* checkpoint, const MemoryRequest& asked) {
  check_limits(asked.limits);
  const WeightSizes sizes(files, checkpoint);
  const std::vector<Share> ranks = shares(files.config, sizes, asked);
  MemoryRequest request = asked;
  const Planner planner(ranks, request);
  MemoryPlan plan{.cache_types = ranks.front().cache_types, .weights_estimated = sizes.estimated()};
  const int64_t longest = planner.longest(request.limits.max_model_len);
  if (longest < request.limits.max_model_len) {
    if (longest == 0 || !request.longest_context) require_one_sequence(planner, request, longest);
    request.limits.max_model_len = longest;
  }
  plan.limits = request.limits;
  const int64_t tokens = plan.limits.max_model_len;
  plan.sequences = planner.most_sequences(tokens, request.limits.max_num_seqs);
  for (const Share& share : ranks) {
    plan.ranks.push_back(planner.bill(share, tokens, plan.sequences));
    std::vector<CacheSpec> all = share.cache;
    for (CacheSpec& spec : all) {
      if (spec.kind == CacheKind::window) spec = {CacheKind::paged, spec.bytes_per_token};
    }
    for (const CacheLine& line : cache_lines(all, plan.limits, tokens, plan.sequences))
      plan.without_windows = saturating_add(plan.without_windows, line.bytes());
  }
  if (request.device_memory == 0) return plan;
  for (int64_t context = kShortestListed;; context *= 2) {
    context = std::min(context, tokens);
    plan.fits.push_back({context, planner.most_sequences(context, kMostSequences)});
    if (context == tokens) break;
  }
  return plan;
}

}  // namespace atom
