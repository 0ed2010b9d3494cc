#include "runtime/machine_bound.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "tensor/buffer.h"
#include "tensor/gpu.h"

namespace atom {
namespace {

constexpr int64_t kBytes = int64_t{1} << 30;
constexpr int kPasses = 4;

uint64_t sum_words(const uint64_t* words, int64_t n) {
  uint64_t sums[8] = {};
  for (int64_t i = 0; i + 8 <= n; i += 8) {
    for (int k = 0; k < 8; ++k) sums[k] += words[i + k];
  }
  uint64_t total = 0;
  for (const uint64_t s : sums) total += s;
  return total;
}

}  // namespace

double measure_read_bandwidth(ThreadPool& pool) {
  const Buffer buffer(kBytes);
  const auto* words = static_cast<const uint64_t*>(buffer.data());
  const int64_t count = kBytes / 8;
  constexpr int64_t kGrain = int64_t{1} << 18;
  pool.parallel_for(count, kGrain, [&](int64_t begin, int64_t end) {
    std::memset(static_cast<uint64_t*>(buffer.data()) + begin, 1, static_cast<size_t>(end - begin) * 8);
  });
  std::atomic<uint64_t> keep{0};  // so that the reads cannot be dropped
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const int64_t start = now_us();
    pool.parallel_for(count, kGrain,
                      [&](int64_t begin, int64_t end) { keep += sum_words(words + begin, end - begin); });
    best = std::max(best, static_cast<double>(kBytes) / seconds_since(start));
  }
  return keep.load() == 1 ? 0 : best;
}

double measure_read_bandwidth(Device device, int threads) {
  if (device.kind != Device::cpu) return gpu::measure_read_bandwidth(device);
  ThreadPool pool(threads);
  return measure_read_bandwidth(pool);
}

}  // namespace atom
