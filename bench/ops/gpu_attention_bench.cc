// Speed of attention on a GPU at the shapes of Llama-3.1-8B (32 heads, 8 kv heads, 128 lanes): one JSON line
// per case, type of cache and implementation. Decodes are bound by memory, prompts by arithmetic. Decodes
// prepare and store their new keys, too (Attend).
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/thread_pool.h"
#include "ops/attend.h"
#include "tensor/buffer.h"

namespace atom {
namespace {

constexpr int32_t kHeads = 32, kKvHeads = 8, kDim = 128, kBlockSize = 32;

// `sequences` of `rows` rows each behind `context` tokens.
void bench(gpu::Queue& queue, double bandwidth, DType dtype, int32_t sequences, int32_t rows,
           int32_t context) {
  Stream stream(queue);
  const Device device = queue.device();
  const int32_t per_sequence = (rows + context + kBlockSize - 1) / kBlockSize,
                blocks = per_sequence * sequences;
  const int64_t cache_bytes = dtype_bytes(dtype, int64_t{blocks} * kKvHeads * kBlockSize * kDim);
  // Few sequences would stay in the second cache: several layers, as a model has.
  const auto layers = static_cast<int32_t>(std::clamp<int64_t>((int64_t{512} << 20) / cache_bytes, 1, 32));
  std::vector<Buffer> k, v;
  for (int32_t i = 0; i < layers; ++i) {
    for (auto* caches : {&k, &v}) {
      caches->emplace_back(cache_bytes, device);
      queue.zero(caches->back().data(), cache_bytes);
    }
  }
  std::vector<int32_t> table(static_cast<size_t>(blocks));  // blocks of a sequence do not lie side by side
  for (int32_t b = 0; b < blocks; ++b) table[b] = b % per_sequence * sequences + b / per_sequence;
  Buffer tables(blocks * 4, device);
  queue.copy_to_device(tables.data(), table.data(), tables.bytes());
  std::vector<ops::AttentionSequence> list;
  for (int32_t i = 0; i < sequences; ++i)
    list.push_back({i * rows, rows, context, static_cast<const int32_t*>(tables.data()) + i * per_sequence});
  Buffer lists(static_cast<int64_t>(list.size() * sizeof(list[0])), device);
  queue.copy_to_device(lists.data(), list.data(), lists.bytes());
  const int32_t tokens = sequences * rows;
  const ops::AttentionBatch batch{
      {static_cast<const ops::AttentionSequence*>(lists.data()), list.size()}, kBlockSize, tokens};
  constexpr int32_t kWidth = (kHeads + 2 * kKvHeads) * kDim;
  Buffer qkv(int64_t{tokens} * kWidth * 4, device), out(int64_t{tokens} * kHeads * kDim * 4, device);
  queue.zero(qkv.data(), qkv.bytes());
  queue.wait();
  const double bytes =
      2.0 * static_cast<double>(dtype_bytes(dtype, int64_t{sequences} * (rows + context) * kKvHeads * kDim));
  const double pairs = static_cast<double>(tokens) * (context + (rows + 1) / 2.0) * kHeads;

  const Tensor q = make_tensor(qkv.data(), DType::f32, {tokens, kWidth}, device);
  const auto cache_of = [&](const Buffer& b) {
    return make_tensor(b.data(), dtype, {blocks, kKvHeads, kBlockSize, kDim}, device);
  };
  const auto attend_of = [&](int32_t layer) {
    const Tensor ks = cache_of(k[layer]), vs = cache_of(v[layer]);
    return ops::Attend{
        .store = {.qkv = q,
                  .k_cache = ks,
                  .v_cache = vs,
                  .batch = &batch,
                  .heads = kHeads,
                  .kv_heads = kKvHeads,
                  .head_dim = kDim},
        .attention = {.out = make_tensor(out.data(), DType::f32, {tokens, kHeads * kDim}, device),
                      .q = q,
                      .k_cache = ks,
                      .v_cache = vs,
                      .batch = &batch,
                      .heads = kHeads,
                      .kv_heads = kKvHeads,
                      .head_dim = kDim,
                      .scale = 1 / std::sqrt(static_cast<float>(kDim))}};
  };
  const auto time_entries = [&](const auto& entries, const auto& op_of) {
    for (const auto& impl : entries) {
      if (impl.refuse(stream, op_of(0)) != nullptr) continue;
      if (rows > 1 && std::string_view(impl.name) == "attention.gpu") continue;  // for what no other takes
      double best = 1e30;
      for (int round = 0; round < 4; ++round) {
        const int64_t start = now_us();
        for (int32_t i = 0; i < layers; ++i) impl.run(stream, op_of(i));
        queue.wait();
        best = std::min(best, seconds_since(start) / layers);
      }
      fmt::print(
          "{{\"op\": \"{}\", \"cache\": \"{}\", \"sequences\": {}, \"rows\": {}, \"context\": {}, "
          "\"us_per_layer\": {:.1f}, \"GB/s\": {:.0f}, \"of_bandwidth\": {:.2f}, \"TFLOP/s\": {:.1f}}}\n",
          impl.name, dtype_name(dtype), sequences, rows, context, best * 1e6, bytes / best * 1e-9,
          bytes / best / bandwidth, pairs * kDim * 4 / best * 1e-12);
    }
  };
  if (rows == 1) {
    time_entries(ops::gpu_impls<ops::Attend>(), attend_of);
  } else {
    time_entries(ops::gpu_impls<ops::PagedAttention>(),
                 [&](int32_t layer) { return attend_of(layer).attention; });
  }
}

}  // namespace
}  // namespace atom

int main() {
  using namespace atom;
  if (gpu::device_count() == 0) {
    fmt::print(stderr, "gpu_attention_bench: no GPU\n");
    return 77;
  }
  const Device device{gpu::backend(), 0};
  gpu::Queue queue(device, gpu::Queue::Mode::run, int64_t{256} << 20);
  const double bandwidth = gpu::measure_read_bandwidth(device);
  fmt::print("{{\"read_bandwidth_GB/s\": {:.0f}}}\n", bandwidth * 1e-9);
  for (const DType dtype : {DType::bf16, DType::f8e4m3}) {
    for (const int32_t context : {127, 4095, 32767}) bench(queue, bandwidth, dtype, 1, 1, context);
    for (const int32_t context : {127, 1023, 4095}) bench(queue, bandwidth, dtype, 64, 1, context);
    for (const int32_t context : {1023, 4095}) bench(queue, bandwidth, dtype, 256, 1, context);
    bench(queue, bandwidth, dtype, 1, 8192, 0);
    bench(queue, bandwidth, dtype, 4, 2048, 4096);
  }
}
