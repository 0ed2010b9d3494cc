// Routed experts on Hopper for more than a few uses: uses are grouped by expert on the device, and their rows
// of x lie together, so that an expert is read once for all of them.
//   h[use] = weight * act(gate · x[token], up · x[token]) in 16 bits;  y[use] = down · h[use];  out[token] =
//   the sum over its uses
// Bound: the bytes of the experts for few uses of each, tensor cores for many.
#include <algorithm>
#include <utility>

#include "ops/cuda/expert_products.h"
#include "ops/cuda/grouped_product.h"
#include "ops/gpu/moe_kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int64_t kScratchBytes = int64_t{1} << 30;  // about; bounds the tokens of one pass
constexpr int64_t kMaxUses = int64_t{1} << 20;       // of a pass
constexpr int64_t kMaxSummed = 65535;                // tokens of a pass: a row of sum_uses' grid each
constexpr float kLargestF16 = 65504;
constexpr int kLeastManyRows = 32;  // the smallest tile of grouped_kernel.h for MXFP4

// Takes memory off a block from its begin on.
class Carver {
 public:
  explicit Carver(void* memory = nullptr) : memory_(static_cast<std::byte*>(memory)) {}
  template <class T>
  T* take(int64_t bytes) {
    auto* part = reinterpret_cast<T*>(memory_ + used_);
    used_ += (bytes + 255) / 256 * 256;
    return part;
  }
  int64_t used() const { return used_; }

 private:
  std::byte* memory_;
  int64_t used_ = 0;
};

// A tile holds half as many uses again as an expert has on average.
int tile_for(int64_t uses, const Experts& experts) { return tile_of_rows(3 * uses / (2 * experts.count)); }

bool in_pieces(DType type) { return type == DType::mxfp4_8x64; }

// Whether h surely fits f16.
bool small_inner(const Experts& e) {
  return e.activation == ExpertActivation::clamped_swiglu && e.limit * (e.limit + 1) < kLargestF16 / 4;
}

struct Memory {
  UseTile* tiles;
  int32_t *made, *order, *slot_of;
  void *x, *h;
  float2* slots;
  float *y, *partials;

  Memory(Carver& carver, const Stream& stream, const Experts& experts, int64_t uses, int tile)
      : tiles(carver.take<UseTile>(most_tiles(uses, experts.count, tile) *
                                   static_cast<int64_t>(sizeof(UseTile)))),
        made(carver.take<int32_t>(8)),
        order(carver.take<int32_t>(uses * 4)),
        slot_of(carver.take<int32_t>(uses * 4)),
        x(carver.take<void>(uses * experts.hidden * 2)),
        h(carver.take<void>(uses * experts.inter * 2)),
        slots(carver.take<float2>(uses * 8)),
        y(carver.take<float>(uses * experts.hidden * 4)),
        partials(carver.take<float>(partials_bytes(stream, std::max(tile, kLeastManyRows)))) {}
};

// Both products, without what says which uses there are and with bf16.
std::pair<GroupedProduct, GroupedProduct> products_of(const MoeExperts& op, const Experts& experts, void* h,
                                                      float* y) {
  GroupedProduct up{.out = h, .out_stride = experts.inter, .to_inner = true};
  GroupedProduct down{.out = y, .out_stride = experts.hidden};
  set_up_matrices(up, op, experts);
  set_down_matrices(down, op, experts);
  up.inner_spread = spread_of(down.type);
  return {up, down};
}

void run_pass(Stream& stream, const MoeExperts& op, const Experts& experts) {
  const int64_t tokens = op.x.dim(0), uses = tokens * op.ids.dim(1);
  const int tile = tile_for(uses, experts);
  Carver sizes;
  (void)Memory(sizes, stream, experts, uses, tile);
  Carver carver(stream.queue().scratch(sizes.used()));
  const Memory memory(carver, stream, experts, uses, tile);
  const Routing routing(op);
  group_uses(stream, memory.tiles, most_tiles(uses, experts.count, tile), memory.order, experts, routing,
             uses, tile, memory.made, memory.slot_of);

  auto [up, down] = products_of(op, experts, memory.h, memory.y);
  for (GroupedProduct* product : {&up, &down}) {
    product->tiles = memory.tiles;
    product->made = memory.made;
    product->order = memory.order;
    product->slots = memory.slots;
    product->partials = memory.partials;
  }
  if (in_pieces(up.type) && piece_product_fits(up.cols, tile)) up.half = Half::f16;
  up.x_divided = up.half == Half::f16;
  if (in_pieces(down.type) && piece_product_fits(down.cols, tile) && small_inner(experts))
    down.half = Half::f16;
  up.inner_half = down.half;
  down.known_early = up.half == Half::f16;  // that kernel waits before it lets others start

  place_grouped(stream,
                {.out = memory.x,
                 .slots = memory.slots,
                 .x = op.x.as<float>(),
                 .x_stride = op.x.strides[0],
                 .cols = experts.hidden,
                 .rows = static_cast<int>(tokens),
                 .slot_of = memory.slot_of,
                 .routing = routing},
                up.type, up.half);
  start_grouped(stream, up, memory.x, uses, tile);
  start_grouped(stream, down, memory.h, uses, tile);
  sum_uses(stream, op.out, memory.y, experts, routing, op.accumulate);
}

}  // namespace

const char* refuse_hopper_experts(const Stream& stream, const MoeExperts& op) {
  if (const char* reason = refuse_grouping(op)) return reason;
  if (const char* reason = refuse_rounded_experts(
          op, [&](const WeightPart& part) { return refuse_grouped_matrix(stream, part); }))
    return reason;
  if (!can_map_tensors()) return "the driver makes no tensor maps";
  const Experts experts = experts_of(op);
  for (const ExpertMatrix* m : {&experts.gate, &experts.up, &experts.down}) {
    if (experts.count > 1 && (m->data_step <= 0 || m->data_step % 16 != 0)) return "experts are not aligned";
  }
  return nullptr;
}

void hopper_experts(Stream& stream, const MoeExperts& op) {
  if (op.x.dim(0) == 0) return;
  const int64_t k = op.ids.dim(1);
  const Experts experts = experts_of(op);
  const int64_t bytes = k * (experts.hidden * 6 + experts.inter * 2);  // of a token
  in_passes(op, std::min({kScratchBytes / bytes, kMaxUses / k, kMaxSummed}),
            [&](const MoeExperts& part) { run_pass(stream, part, experts); });
}

const char* refuse_piece_row_experts(const Stream& stream, const MoeExperts& op) {
  if (op.x.dim(0) != 1) return "for one row";
  if (op.ids.dim(1) > kMostUsesOfRow) return "too many experts of a token";
  if (const char* reason = refuse_hopper_experts(stream, op)) return reason;
  const Experts experts = experts_of(op);
  for (const auto& [weight, cols] : {std::pair(&op.gate_up, experts.hidden), {&op.down, experts.inter}}) {
    if (!in_pieces(weight->front().parts.front().data.dtype) || !piece_product_fits(cols, 8))
      return "not in pieces, or too many columns";
  }
  return small_inner(experts) ? nullptr : "h may be too large for f16";
}

void piece_row_experts(Stream& stream, const MoeExperts& op) {
  const Experts experts = experts_of(op);
  const int64_t uses = op.ids.dim(1);
  const int64_t h_bytes = aligned(uses * experts.inter * 2);
  auto* h = static_cast<std::byte*>(stream.queue().scratch(h_bytes + uses * experts.hidden * 4));
  auto* y = reinterpret_cast<float*>(h + h_bytes);
  auto [up, down] = products_of(op, experts, h, y);
  for (GroupedProduct* product : {&up, &down}) {
    product->half = Half::f16;
    product->one_row = true;
    product->routing = Routing(op);
  }
  up.x_divided = true;
  up.inner_half = Half::f16;
  down.known_early = true;
  start_piece_product(stream, up, op.x.data, 1);
  start_piece_product(stream, down, h, 1);
  sum_uses(stream, op.out, y, experts, Routing(op), op.accumulate);
}

}  // namespace atom::ops::gpu_kernels
