// Speed of paged attention at the shapes of Qwen3-0.6B (16 heads, 8 kv heads, 128 lanes): one JSON line per
// case and implementation. Decode is bound by memory, prefill by arithmetic. Usage: attention_bench [threads]
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/clock.h"
#include "ops/attention.h"
#include "tensor/buffer.h"

namespace atom {
namespace {

constexpr int32_t kHeads = 16, kKvHeads = 8, kDim = 128, kBlockSize = 16;

// The fastest of several runs, in seconds.
template <class Fn>
double best_seconds(int rounds, Fn&& fn) {
  double best = 1e30;
  for (int i = 0; i < rounds; ++i) {
    const int64_t start = now_us();
    fn();
    best = std::min(best, seconds_since(start));
  }
  return best;
}

// Bytes per second that the team reads from memory, as the bound for decode.
double read_bandwidth(ThreadPool& pool) {
  const int64_t n = int64_t{64} << 20;  // floats: 256 MiB
  Buffer buffer(n * 4);
  std::memset(buffer.data(), 1, static_cast<size_t>(n) * 4);
  const auto* data = static_cast<const uint64_t*>(buffer.data());
  std::vector<uint64_t> sums(pool.size() * 8);
  const double seconds = best_seconds(5, [&] {
    pool.run([&](int member, int members) {
      const int64_t words = n / 2, begin = words * member / members, end = words * (member + 1) / members;
      uint64_t sum[8] = {};
      for (int64_t i = begin; i + 8 <= end; i += 8) {
        for (int k = 0; k < 8; ++k) sum[k] ^= data[i + k];
      }
      std::memcpy(&sums[member * 8], sum, sizeof(sum));
    });
  });
  return static_cast<double>(n) * 4 / seconds;
}

void bench(ThreadPool& pool, double bandwidth, DType dtype, int32_t rows, int32_t context) {
  Stream stream(pool);
  // As many layers as keep a decode out of the caches, as a model would.
  const int32_t layers = rows == 1 ? 28 : 1;
  const int32_t blocks = (rows + context + kBlockSize - 1) / kBlockSize;
  const int64_t cache_bytes = dtype_bytes(dtype, int64_t{blocks} * kKvHeads * kBlockSize * kDim);
  Buffer k(cache_bytes * layers), v(cache_bytes * layers);
  std::memset(k.data(), 0x3C, static_cast<size_t>(k.bytes()));
  std::memset(v.data(), 0x3C, static_cast<size_t>(v.bytes()));
  std::vector<int32_t> table(blocks);
  for (int32_t b = 0; b < blocks; ++b) table[b] = b;
  const ops::AttentionSequence sequence{0, rows, context, table.data()};
  const ops::AttentionBatch batch{{&sequence, 1}, kBlockSize, rows};
  std::vector<float> q(int64_t{rows} * kHeads * kDim, 0.01f), out(q.size());
  ops::PagedAttention op;
  op.out = make_tensor(out.data(), DType::f32, {rows, kHeads * kDim});
  op.q = make_tensor(q.data(), DType::f32, {rows, kHeads * kDim});
  op.batch = &batch;
  op.heads = kHeads;
  op.kv_heads = kKvHeads;
  op.head_dim = kDim;
  op.scale = 1 / std::sqrt(static_cast<float>(kDim));
  auto set_layer = [&](int32_t layer) {
    op.k_cache = make_tensor(static_cast<char*>(k.data()) + layer * cache_bytes, dtype,
                             {blocks, kKvHeads, kBlockSize, kDim});
    op.v_cache = make_tensor(static_cast<char*>(v.data()) + layer * cache_bytes, dtype,
                             {blocks, kKvHeads, kBlockSize, kDim});
  };
  set_layer(0);
  for (const auto& impl : ops::impls<ops::PagedAttention>()) {
    if (std::strcmp(impl.name, "attention.ref") == 0 || impl.refuse(stream, op) != nullptr) continue;
    const double seconds = best_seconds(7,
                                        [&] {
                                          for (int32_t layer = 0; layer < layers; ++layer) {
                                            set_layer(layer);
                                            impl.run(stream, op);
                                          }
                                        }) /
                           layers;
    const double bytes =
        2.0 * static_cast<double>(dtype_bytes(dtype, int64_t{rows + context} * kKvHeads * kDim));
    const double pairs = static_cast<double>(rows) * (context + (rows + 1) / 2.0) * kHeads;
    fmt::print(
        "{{\"op\": \"{}\", \"cache\": \"{}\", \"threads\": {}, \"rows\": {}, \"context\": {}, "
        "\"us_per_layer\": "
        "{:.1f}, \"GB/s\": {:.2f}, \"of_bandwidth\": {:.2f}, \"GFLOP/s\": {:.1f}}}\n",
        impl.name, dtype_name(dtype), pool.size(), rows, context, seconds * 1e6, bytes / seconds * 1e-9,
        bytes / seconds / bandwidth, pairs * kDim * 4 / seconds * 1e-9);
  }
}

}  // namespace
}  // namespace atom

int main(int argc, char** argv) {
  using namespace atom;
  ThreadPool pool(argc > 1 ? std::max(1, std::atoi(argv[1])) : 2);
  const double bandwidth = read_bandwidth(pool);
  fmt::print("{{\"read_bandwidth_GB/s\": {:.2f}, \"threads\": {}}}\n", bandwidth * 1e-9, pool.size());
  for (const DType dtype : {DType::f8e4m3, DType::bf16, DType::f16, DType::f32}) {
    for (const int32_t context : {128, 2048, 8192}) bench(pool, bandwidth, dtype, 1, context - 1);
    for (const int32_t rows : {512, 2048}) bench(pool, bandwidth, dtype, rows, 0);
  }
}
