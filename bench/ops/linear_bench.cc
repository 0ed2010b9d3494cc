// Speed of the matrix products at model shapes: one JSON line per shape, type, token count and entry.
//   linear_bench [--threads N] [--type NAME] [--filter TEXT] [--memory-mib N]
// Weights are read from a region far larger than a core's share of the caches, a fresh matrix each time. The
// figures are of the fastest tenth of the runs ("best") and of the median, so a busy machine can be told from
// a slow kernel; "read" lines are plain reads of the same pieces, the bound for few tokens.
#include <fmt/core.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "ops/linear.h"
#include "tensor/buffer.h"
#include "tensor/small_floats.h"

namespace atom::ops {
namespace {

struct Options {
  int threads = 2;
  std::string filter, type;  // of an output line; of the weights
  int64_t memory_bytes = int64_t{1} << 30;
};

struct Shape {
  const char* name;
  int64_t rows, cols;
  bool gated;
};

struct Case {
  DType type;
  std::vector<Shape> shapes;
};

struct Times {
  double best_us, median_us;
};

Times summarise(std::vector<double> us) {
  std::sort(us.begin(), us.end());
  return {us[us.size() / 10], us[us.size() / 2]};
}

// One thread is timed by its own clock, which stands still while others have the core.
double now_us(bool cpu_time) {
  timespec now;
  clock_gettime(cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) * 1e-3;
}

// Calls fn(piece) for pieces of the region in turn, for some tenths of a second.
template <class Fn>
Times measure(const Stream& stream, const Buffer& region, int64_t bytes, Fn&& fn) {
  const bool cpu_time = stream.pool().size() == 1;
  std::vector<double> us;
  const int64_t pieces = std::max<int64_t>(1, region.bytes() / bytes);
  const double end = now_us(false) + 400e3;
  for (int64_t i = 0; us.size() < 10 || now_us(false) < end; ++i) {
    std::byte* piece = static_cast<std::byte*>(region.data()) + i % pieces * bytes;
    const double start = now_us(cpu_time);
    fn(piece);
    us.push_back(now_us(cpu_time) - start);
  }
  return summarise(us);
}

double read_gb_s(Stream& stream, const Buffer& region, int64_t bytes) {
  static std::atomic<uint64_t> sink;
  const Times times = measure(stream, region, bytes, [&](const std::byte* piece) {
    stream.pool().parallel_for(bytes / 4096, 16, [&](int64_t begin, int64_t end) {
      uint64_t sums[32] = {};
      for (const std::byte *p = piece + begin * 4096, *last = piece + end * 4096; p < last;
           p += sizeof(sums)) {
        uint64_t words[32];
        std::memcpy(words, p, sizeof(words));
        for (int i = 0; i < 32; ++i) sums[i] |= words[i];
      }
      uint64_t all = 0;
      for (const uint64_t word : sums) all |= word;
      sink.fetch_or(all, std::memory_order_relaxed);
    });
  });
  return static_cast<double>(bytes) / times.best_us / 1e3;
}

// Scales of one for a part of a type that needs them, in the blocks that checkpoints have.
BlockScales unit_scales(DType type, int64_t rows, int64_t cols, std::vector<float>& memory) {
  const bool nibbles = type == DType::f4e2m1x2;
  const int64_t block_rows = nibbles ? 1 : 128, block_cols = nibbles ? 32 : 128;
  const int64_t down = (rows + block_rows - 1) / block_rows, across = (cols + block_cols - 1) / block_cols;
  memory.assign(static_cast<size_t>(down * across), 1);
  if (nibbles) std::memset(memory.data(), 127, static_cast<size_t>(down * across));
  return {make_tensor(memory.data(), nibbles ? DType::e8m0 : DType::f32, {down, across}), block_rows,
          block_cols};
}

// Finite weights of any type: random bytes, then small scales in every block.
void fill(const Buffer& region, DType type) {
  std::mt19937 rng(1);
  const int64_t size = dtype_info(type).block_bytes;
  auto* bytes = static_cast<uint8_t*>(region.data());
  std::vector<uint8_t> pattern(size * 65536);
  for (uint8_t& byte : pattern) byte = static_cast<uint8_t>(rng());
  for (uint8_t& byte : pattern) {  // the largest of a block is about four deviations out
    if (type == DType::f8e4m3) byte = f32_to_f8e4m3(std::normal_distribution<float>(0, kF8e4m3Max / 4)(rng));
  }
  for (size_t at = 0; at < pattern.size() && !is_scaled_type(type); at += size) {
    const uint16_t small = type == DType::bf16 ? 0x3C00 | (rng() & 0x81FF) : 0x2000 | (rng() & 0x83FF);
    const uint16_t zero = 0;
    if (type == DType::f32) {
      const float value = bf16_to_f32(small);
      std::memcpy(&pattern[at], &value, 4);
      continue;
    }
    std::memcpy(&pattern[type == DType::q6_k ? at + 208 : at], &small, 2);
    if (size > 22 && type != DType::q6_k && type != DType::q8_0) std::memcpy(&pattern[at + 2], &zero, 2);
    if (type == DType::q4_1) std::memcpy(&pattern[at + 2], &small, 2);
  }
  const int64_t length = static_cast<int64_t>(pattern.size());
  for (int64_t at = 0; at < region.bytes(); at += length) {
    std::memcpy(bytes + at, pattern.data(), static_cast<size_t>(std::min(length, region.bytes() - at)));
  }
}

template <class Op>
void bench_op(Stream& stream, const Options& options, const Buffer& region, const Shape& shape, DType type,
              int64_t tokens, Precision precision) {
  const int64_t bytes = dtype_bytes(type, shape.rows * shape.cols);
  const int64_t out_cols = shape.gated ? shape.rows / 2 : shape.rows;
  std::vector<float> x(tokens * shape.cols), out(tokens * out_cols);
  std::mt19937 rng(2);
  for (float& value : x) value = std::normal_distribution<float>()(rng);
  Op op{};
  op.x = make_tensor(x.data(), DType::f32, {tokens, shape.cols});
  op.out = make_tensor(out.data(), DType::f32, {tokens, out_cols});
  op.precision = precision;
  double bound = 0;
  std::vector<float> scale_memory;
  BlockScales scales;
  if (is_scaled_type(type)) scales = unit_scales(type, shape.rows, shape.cols, scale_memory);
  for (const Impl<Op>& impl : impls<Op>()) {
    WeightPart part{make_tensor(region.data(), type, {shape.rows, shape.cols}), scales};
    op.w = {{&part, 1}, shape.rows, shape.cols};
    const std::string label = fmt::format("{} {} {} {} {}", impl.name, shape.name, dtype_name(type), tokens,
                                          precision == Precision::fast ? "fast" : "exact");
    if (impl.refuse(stream, op) != nullptr || label.find(options.filter) == std::string::npos) continue;
    if (std::strstr(impl.name, ".ref") || std::strstr(impl.name, ".composed")) continue;
    if (bound == 0) bound = read_gb_s(stream, region, std::max<int64_t>(bytes / 4096 * 4096, 1 << 16));
    const Times times = measure(stream, region, bytes, [&](std::byte* piece) {
      part.data.data = piece;
      impl.run(stream, op);
    });
    const double flops = 2.0 * static_cast<double>(tokens * shape.rows * shape.cols);
    const double gb_s = static_cast<double>(bytes) / times.best_us / 1e3;
    fmt::print(
        "{{\"entry\": \"{}\", \"shape\": \"{}\", \"type\": \"{}\", \"tokens\": {}, \"precision\": \"{}\", "
        "\"threads\": {}, "
        "\"best_us\": {:.1f}, \"median_us\": {:.1f}, \"gb_s\": {:.2f}, \"read_gb_s\": {:.2f}, "
        "\"fraction_of_read\": {:.2f}, \"gflop_s\": {:.1f}}}\n",
        impl.name, shape.name, dtype_name(type), tokens, precision == Precision::fast ? "fast" : "exact",
        options.threads, times.best_us, times.median_us, gb_s, bound, gb_s / bound,
        flops / times.best_us / 1e3);
    std::fflush(stdout);
  }
}

void bench(const Options& options) {
  const std::vector<Shape> qwen3 = {{"qwen3-0.6b qkv", 4096, 1024, false},
                                    {"qwen3-0.6b o", 1024, 2048, false},
                                    {"qwen3-0.6b gate_up", 6144, 1024, true},
                                    {"qwen3-0.6b down", 1024, 3072, false},
                                    {"qwen3-0.6b head", 151936, 1024, false}};
  const std::vector<Shape> smollm2 = {{"smollm2-135m qkv", 960, 576, false},
                                      {"smollm2-135m o", 576, 576, false},
                                      {"smollm2-135m gate_up", 3072, 576, true},
                                      {"smollm2-135m down", 576, 1536, false},
                                      {"smollm2-135m head", 49152, 576, false}};
  const std::vector<Shape> k_quants = {{"qwen3-0.6b qkv", 4096, 1024, false},
                                       {"qwen3-0.6b down", 1024, 3072, false}};
  const Case cases[] = {{DType::bf16, qwen3},    {DType::f8e4m3, qwen3},  {DType::f4e2m1x2, qwen3},
                        {DType::q4_1, smollm2},  {DType::q4_0, smollm2},  {DType::q5_0, smollm2},
                        {DType::q5_1, smollm2},  {DType::q8_0, smollm2},  {DType::q4_k, k_quants},
                        {DType::q5_k, k_quants}, {DType::q6_k, k_quants}, {DType::f16, k_quants},
                        {DType::f32, k_quants}};
  ThreadPool pool(options.threads);
  Stream stream(pool);
  for (const Case& c : cases) {
    if (!options.type.empty() && options.type != dtype_name(c.type)) continue;
    const Buffer region(options.memory_bytes);
    fill(region, c.type);
    for (const Shape& shape : c.shapes) {
      for (const int64_t tokens : {1, 2, 4, 8, 16, 512}) {
        for (const Precision precision : {Precision::fast, Precision::exact}) {
          if (tokens == 512 && shape.rows > 40000) continue;  // prompts need the head for one row only
          if (shape.gated) {
            bench_op<GatedUp>(stream, options, region, shape, c.type, tokens, precision);
          } else {
            bench_op<Linear>(stream, options, region, shape, c.type, tokens, precision);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace atom::ops

int main(int argc, char** argv) {
  atom::ops::Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--threads") options.threads = std::atoi(argv[i + 1]);
    if (flag == "--filter") options.filter = argv[i + 1];
    if (flag == "--type") options.type = argv[i + 1];
    if (flag == "--memory-mib") options.memory_bytes = std::atoll(argv[i + 1]) << 20;
  }
  if (options.threads < 1 || options.memory_bytes < int64_t{400} << 20 || argc % 2 == 0) {
    fmt::print(
        stderr,
        "usage: linear_bench [--threads N] [--type NAME] [--filter TEXT] [--memory-mib N, at least 400]\n");
    return 2;
  }
  atom::ops::bench(options);
}
