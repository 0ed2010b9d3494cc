// Routed experts on tensor cores.
//   h[use] = weight * act(gate · x[token], up · x[token]) in bf16;  out[token] = sum over its uses of down ·
//   h[use]
// Bound: the bytes of the distinct experts for few tokens, tensor cores for many.
#include <algorithm>

#include "ops/cuda/expert_products.h"
#include "ops/cuda/packed_kernel.h"
#include "ops/gpu/kernels.h"
#include "ops/gpu/moe_kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int64_t kFewUses = 32;  // up to so many (at most kMaxChosen), most have an expert of their own
constexpr int64_t kScratchBytes = int64_t{512} << 20;  // about; bounds the tokens of one pass
constexpr int64_t kMaxUses = 65535;                    // of a pass
constexpr int64_t kFloatRows = 64;                     // beyond, blocks read x often enough to round it first

const char* refuse(const Stream& stream, const MoeExperts& op) {
  return refuse_rounded_experts(op,
                                [&](const WeightPart& part) { return refuse_packed_matrix(stream, part); });
}

// The product with gate and up; the caller says which uses and where they go.
PackedProduct up_product(const MoeExperts& op, const Experts& experts, void* h) {
  PackedProduct product{.routing = Routing(op),
                        .x = op.x.data,
                        .x_stride = op.x.strides[0],
                        .out = h,
                        .out_stride = experts.inter,
                        .to_inner = true,
                        .inner_type = op.down.front().parts.front().data.dtype};
  set_up_matrices(product, op, experts);
  return product;
}

PackedProduct down_product(const MoeExperts& op, const Experts& experts, const void* h) {
  PackedProduct product{
      .routing = Routing(op), .x = h, .x_stride = experts.inter, .x_is_float = false, .x_by_use = true};
  set_down_matrices(product, op, experts);
  return product;
}

// Uses of an expert that a block takes: its share on average and some more, since shares differ.
int tile_for(int64_t uses, const Experts& experts, DType type) {
  int tile = 8;
  while (tile < largest_tile(type) && tile * experts.count < 2 * uses) tile *= 2;
  return tile;
}

void run_pass(Stream& stream, const MoeExperts& op, const Experts& experts) {
  gpu::Queue& queue = stream.queue();
  const int64_t tokens = op.x.dim(0), uses = tokens * op.ids.dim(1);
  PackedProduct up = up_product(op, experts, nullptr), down = down_product(op, experts, nullptr);
  const int tile = std::min(tile_for(uses, experts, up.type), tile_for(uses, experts, down.type));
  const int64_t bound = most_tiles(uses, experts.count, tile);
  const bool rounds = tokens > kFloatRows;
  const int64_t h_bytes = aligned(uses * experts.inter * 2), y_bytes = aligned(uses * experts.hidden * 4);
  const int64_t x_bytes = rounds ? aligned(tokens * experts.hidden * 2) : 0;
  const int64_t order_bytes = aligned(uses * 4), made_bytes = aligned(8),
                tile_bytes = bound * static_cast<int64_t>(sizeof(UseTile));
  auto* memory = static_cast<std::byte*>(
      queue.scratch(h_bytes + y_bytes + x_bytes + order_bytes + made_bytes + tile_bytes));
  auto* y = reinterpret_cast<float*>(memory + h_bytes);
  auto* order = reinterpret_cast<int32_t*>(memory + h_bytes + y_bytes + x_bytes);
  auto* made = reinterpret_cast<int32_t*>(memory + h_bytes + y_bytes + x_bytes + order_bytes);
  auto* tiles = reinterpret_cast<UseTile*>(memory + h_bytes + y_bytes + x_bytes + order_bytes + made_bytes);
  group_uses(stream, tiles, bound, order, experts, up.routing, uses, tile, made);
  if (rounds) {
    const Tensor x =
        make_tensor(memory + h_bytes + y_bytes, DType::bf16, {tokens, experts.hidden}, op.x.device);
    place_rows(stream, x, op.x, up.type);
    up.x = x.data;
    up.x_stride = experts.hidden;
    up.x_is_float = false;
  }
  up.out = memory;
  down.x = memory;
  down.out = y;
  down.out_stride = experts.hidden;
  const int64_t real_tiles = std::min(uses, std::max<int64_t>(experts.count, uses / tile));
  for (PackedProduct* product : {&up, &down}) {
    product->choice = Choice::tile;
    product->works = static_cast<int>(bound);
    product->tiles = tiles;
    product->order = order;
    packed_product(stream, *product, tile, real_tiles);
  }
  sum_uses(stream, op.out, y, experts, up.routing, op.accumulate);
}

}  // namespace

const char* refuse_few_experts(const Stream& stream, const MoeExperts& op) {
  if (op.ids.elements() > kFewUses) return "many uses";
  return refuse(stream, op);
}

void few_experts(Stream& stream, const MoeExperts& op) {
  const int64_t tokens = op.x.dim(0), uses = op.ids.elements();
  if (tokens == 0) return;
  const Experts experts = experts_of(op);
  void* h = stream.queue().scratch(uses * experts.inter * 2);
  PackedProduct up = up_product(op, experts, h), down = down_product(op, experts, h);
  up.choice = Choice::use;
  up.works = static_cast<int>(uses);
  packed_product(stream, up, 8, uses);
  down.choice = Choice::token;
  down.works = static_cast<int>(tokens);
  down.out = op.out.data;
  down.out_stride = op.out.strides[0];
  down.accumulate = op.accumulate;
  packed_product(stream, down, 8, tokens);
}

const char* refuse_grouped_experts(const Stream& stream, const MoeExperts& op) {
  if (const char* reason = refuse_grouping(op)) return reason;
  return refuse(stream, op);
}

void grouped_experts(Stream& stream, const MoeExperts& op) {
  if (op.x.dim(0) == 0) return;
  const int64_t k = op.ids.dim(1);
  const Experts experts = experts_of(op);
  const int64_t bytes = k * (experts.hidden * 4 + experts.inter * 2);  // of a token
  in_passes(op, std::min(kScratchBytes / bytes, kMaxUses / k),
            [&](const MoeExperts& part) { run_pass(stream, part, experts); });
}

}  // namespace atom::ops::gpu_kernels
