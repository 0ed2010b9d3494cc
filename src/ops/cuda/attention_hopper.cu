// Paged attention of prompt rows on Hopper: which shapes the kernel takes, and how a block divides them.
#include <algorithm>
#include <bit>

#include "ops/cuda/prompt_kernel.h"
#include "ops/gpu/deferred.h"
#include "ops/gpu/kernels.h"
#include "ops/gpu/prompt_kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

// Tiles of a step and its kv heads at most, if each sequence ends in a tile that is not full.
template <class C>
int64_t most_tiles(const PagedAttention& op) {
  const auto count = static_cast<int64_t>(op.batch->sequences.size());
  return (ceil_div(op.out.dim(0), C::kVectors / (op.heads / op.kv_heads)) + count) * op.kv_heads;
}

template <class C>
void start(Stream& stream, const PagedAttention& op) {
  gpu::Queue& queue = stream.queue();
  if (queue.planning()) return;
  const int block_size = op.batch->block_size;
  // Copies do not cross blocks of the cache or tiles, which begin at multiples of their size.
  const int box = std::min(C::kKeys, 1 << std::countr_zero(static_cast<unsigned>(block_size)));
  auto map = [&](const Tensor& cache) {
    return map_tensor({.data = cache.data,
                       .row_bytes = C::kDim * 2,
                       .rows = int64_t{op.kv_heads} * block_size,
                       .row_stride = C::kDim * 2,
                       .matrices = cache.dim(0),
                       .matrix_stride = cache.strides[0] * 2,
                       .tile_rows = box});
  };
  const PromptArguments a{.k_map = map(op.k_cache),
                          .v_map = map(op.v_cache),
                          .out = op.out.data,
                          .rounds = op.out.dtype == DType::bf16,
                          .q = op.q.as<float>(),
                          .sinks = op.sinks.as<float>(),
                          .out_stride = op.out.strides[0],
                          .q_stride = op.q.strides[0],
                          .sequences = Sequences(*op.batch),
                          .heads = op.heads,
                          .kv_heads = op.kv_heads,
                          .block_size = block_size,
                          .window = op.window,
                          .box = box,
                          .scale = op.scale * op.scales.k,
                          .value_scale = op.scales.v};
  const int64_t blocks = std::min<int64_t>(most_tiles<C>(op), queue.processors());
  launch(queue, prompt_kernel<C>, dim3(static_cast<unsigned>(blocks)), dim3(C::kThreads), C::kShared, a);
}

template <class T>
void start_typed(Stream& stream, const PagedAttention& op) {
  if (op.head_dim == 64) {
    using Large = PromptCut<T, 64, 128, 3, 2>;  // the faster, if there is work for all
    if (most_tiles<Large>(op) >= 2 * stream.queue().processors()) return start<Large>(stream, op);
    return start<PromptCut<T, 64, 128, 2, 2>>(stream, op);
  }
  if (op.head_dim == 256) return start<PromptCut<T, 256, 64, 2, 2>>(stream, op);
  start<PromptCut<T, 128, 128, 2, 2>>(stream, op);
}

}  // namespace

const char* refuse_prompt(const Stream& stream, const PagedAttention& op) {
  if (stream.queue().capability() != 90) return "for Hopper only";
  if (op.k_cache.dtype != DType::bf16 && op.k_cache.dtype != DType::f16)
    return "multiplies a cache of 16 bits";
  if (op.head_dim != 64 && op.head_dim != 128 && op.head_dim != 256) {
    return "for heads of 64, 128 and 256 elements";
  }
  if (op.heads / op.kv_heads > 128) return "too many query heads share one kv head";
  if (Sequences(*op.batch).one_row_each) return "decodes are split along the context";
  if (op.batch->block_size % 8 != 0) return "copies 8 keys at least";
  for (const Tensor* cache : {&op.k_cache, &op.v_cache}) {
    if (cache->strides[1] != int64_t{op.batch->block_size} * op.head_dim || cache->strides[0] % 8 != 0 ||
        !aligned16(cache->data)) {
      return "heads of a block of the cache do not follow each other";
    }
  }
  if (op.q.strides[0] % 4 != 0 || !aligned16(op.q.data) || op.out.strides[0] % 2 != 0)
    return "rows are not aligned";
  return can_map_tensors() ? nullptr : "the driver makes no tensor maps";
}

void start_prompt(Stream& stream, const PagedAttention& op) {
  if (op.k_cache.dtype == DType::bf16) return start_typed<Bf16>(stream, op);
  start_typed<F16>(stream, op);
}

void prompt_attention(Stream& stream, const PagedAttention& op) {
  stream.queue().defer(std::make_unique<DeferredPrompt>(op, start_prompt, 0));
}

void DeferredPrompt::start(gpu::Queue& queue) {
  Stream stream(queue);
  attend(stream, op);
}

void DeferredPrompt::start_rounded(gpu::Queue& queue, const Tensor& rounded, bool) {
  if (rounded.dtype == DType::bf16) {
    op.out = rounded;
    return start(queue);
  }
  start(queue);
  Stream stream(queue);
  round_rows(stream, rounded, out);
}

}  // namespace atom::ops::gpu_kernels
