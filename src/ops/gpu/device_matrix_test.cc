// Every op that has GPU entries, each entry against the CPU reference: types, odd shapes, strides, paddings.
// Skipped on a machine without a GPU.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <numeric>
#include <thread>
#include <vector>

#include "ops/argmax.h"
#include "ops/attention.h"
#include "ops/embed.h"
#include "ops/gpu/device_paged.h"
#include "ops/linear.h"
#include "ops/norm.h"

namespace atom::ops {
namespace {

TEST_F(GpuOps, NormsAgree) {
  for (const int64_t n : {1, 5, 64, 72, 1000, 4096, 9000, 14336}) {
    for (const int64_t rows : {1, 3, 130}) {
      for (const bool add : {false, true}) {
        const Twin x = random({rows, n}), y = random({rows, n}), w = random({n}), out = nans({rows, n});
        AddRmsNorm host{out.host, x.host, add ? y.host : Tensor{}, w.host, 1e-5f, add ? 1.0f : 0.0f};
        AddRmsNorm device{out.device, x.device, add ? y.device : Tensor{},
                          w.device,   1e-5f,    add ? 1.0f : 0.0f};
        expect_entries_agree(host, device, out, 1e-6, 0, "n " + std::to_string(n));
        EXPECT_LT(error_of(x), 1e-6) << "the residual, n " << n;
      }
      const Twin x = random({rows, n}), w = random({n}), out = nans({rows, n});
      expect_entries_agree(RmsNorm{out.host, x.host, w.host, 1e-6f},
                           RmsNorm{out.device, x.device, w.device, 1e-6f}, out, 1e-6, 0, "plain");
    }
  }
}

TEST_F(GpuOps, EmbeddingsAndGathersAgree) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Twin first = random({10, 33}, dtype), second = random({7, 33}, dtype), out = nans({5, 33});
    const std::vector<int32_t> ids = {3, 19, 0, 40, 13};  // 40 and 0 are another rank's
    const std::vector<WeightPart> host_parts = {{first.host, {}}, {second.host, {}}};
    const std::vector<WeightPart> device_parts = {{first.device, {}}, {second.device, {}}};
    const auto device_ids = upload_span(ids);
    expect_entries_agree(Embed{out.host, {host_parts, 17, 33}, ids, 3},
                         Embed{out.device, {device_parts, 17, 33}, device_ids, 3}, out, 1e-9, 0,
                         dtype_name(dtype));
  }
  const Twin x = random({9, 70}), out = nans({3, 70});
  const std::vector<int32_t> rows = {8, 0, 8};
  const auto device_rows = upload_span(rows);
  expect_entries_agree(GatherRows{out.host, x.host, rows}, GatherRows{out.device, x.device, device_rows}, out,
                       1e-9, 0, "gather");
}

TEST_F(GpuOps, ArgMaxAgrees) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const int64_t n : {1, 7, 1024, 5000, 50001}) {
    const Twin logits = random({9, n});
    float* rows = logits.host.as<float>();
    rows[n + n / 2] = rows[n + n - 1] = 50;  // a tie: the first
    std::fill_n(rows + 2 * n, n, -kInf);     // nothing can be chosen
    rows[3 * n + n / 2] = std::nanf("");
    rows[4 * n] = kInf;
    std::fill_n(rows + 5 * n, n, -1.0f);
    for (int64_t i = 0; i < n; ++i) rows[6 * n + i] = i % 2 == 0 ? -0.0f : 0.0f;  // equal: the first
    reset(logits);
    std::vector<int32_t> want(9), got(9);
    const std::vector<int32_t> poison(9, -7);
    const Tensor out = make_tensor(upload(poison.data(), 36), DType::i32, {9}, device_);
    run(cpu_, ArgMax{make_tensor(want.data(), DType::i32, {9}), logits.host});
    run(*gpu_, ArgMax{out, logits.device});
    queue_->copy_to_host(got.data(), out.data, 36);
    queue_->wait();
    EXPECT_EQ(got, want) << n;
    EXPECT_EQ(want[2], -1);
    EXPECT_EQ(want[3], -1);
    EXPECT_EQ(want[4], -1);
  }
}

constexpr DType kWeights[] = {DType::f32, DType::bf16, DType::f16};
constexpr std::pair<int64_t, int64_t> kSizes[] = {{1, 8},     {7, 24},     {64, 40},
                                                  {96, 1032}, {130, 4096}, {33, 5}};

// By places in kWeights and kSizes (rows, columns).
class GpuProducts : public GpuOps, public testing::WithParamInterface<std::tuple<int, int>> {};

INSTANTIATE_TEST_SUITE_P(, GpuProducts, testing::Combine(testing::Range(0, 3), testing::Range(0, 6)));

TEST_P(GpuProducts, Agree) {
  const auto [of_weights, of_size] = GetParam();
  const DType dtype = kWeights[of_weights];
  const auto [rows, cols] = kSizes[of_size];
  int variant = 96 * of_weights + 16 * of_size;
  for (const int64_t tokens : {1, 2, 3, 4, 7, 8, 9, 65}) {
    for (const Precision precision : {Precision::exact, Precision::fast}) {
      ++variant;
      const int64_t split = variant % 3 == 0 ? rows / 2 : 0;
      const Twin w = random({rows, cols}, dtype, 1 / std::sqrt(static_cast<float>(cols))),
                 x = random({tokens, cols}), out = nans({tokens, rows}), bias = random({rows});
      std::vector<WeightPart> host_parts = {{w.host, {}}}, device_parts = {{w.device, {}}};
      if (split > 0) {
        host_parts = {{w.host.rows(0, split), {}}, {w.host.rows(split, rows - split), {}}};
        device_parts = {{w.device.rows(0, split), {}}, {w.device.rows(split, rows - split), {}}};
      }
      const bool with_bias = variant % 2 == 0;
      const Linear host{
          out.host, x.host, {host_parts, rows, cols}, with_bias ? bias.host : Tensor{}, precision};
      const Linear device{
          out.device, x.device, {device_parts, rows, cols}, with_bias ? bias.device : Tensor{}, precision};
      const std::string what = std::string(dtype_name(dtype)) + " " + std::to_string(rows) + "x" +
                               std::to_string(cols) + " tokens " + std::to_string(tokens);
      const int least = tokens <= 8 && cols % 8 == 0 ? 2 : 1;
      expect_entries_agree(host, device, out, 3e-6, 6e-3, what, least);
    }
  }
}

// As ranks that share a device do: the kernel is the same, what it takes of a processor's memory is not.
TEST_F(GpuOps, TwoThreadsGiveOneKernelMoreAndLessSharedMemory) {
  const auto multiply_often = [&](const Linear& op) {
    gpu::Queue queue(device_, gpu::Queue::Mode::run, kScratch);
    queue.activate();
    Stream stream(queue);
    EXPECT_NO_THROW({
      for (int i = 0; i < 2000; ++i) run(stream, op);
      queue.wait();
    });
  };
  std::deque<std::vector<WeightPart>> parts;
  std::vector<Twin> outs;
  std::vector<Linear> ops;
  for (const int64_t cols : {4096, 28672}) {
    const Twin w = random({64, cols}, DType::bf16, 0.01f), x = random({1, cols});
    outs.push_back(nans({1, 64}));
    parts.push_back({{w.host, {}}});
    run(cpu_, Linear{outs.back().host, x.host, {parts.back(), 64, cols}, {}, Precision::fast});
    parts.push_back({{w.device, {}}});
    ops.push_back({outs.back().device, x.device, {parts.back(), 64, cols}, {}, Precision::fast});
  }
  std::thread other([&] { multiply_often(ops[0]); });
  multiply_often(ops[1]);
  other.join();
  for (const Twin& out : outs) EXPECT_LT(error_of(out), 6e-3);
}

// As routers have them, and for the library in three parts.
TEST_F(GpuOps, ExactProductsOfManyRowsAgree) {
  for (const auto& [tokens, rows, cols] : {std::array<int64_t, 3>{9, 17, 3080},
                                           {128, 128, 2880},
                                           {257, 33, 40},
                                           {300, 256, 6144},
                                           {512, 1000, 72},
                                           {1000, 72, 520}}) {
    const Twin w = random({rows, cols}, DType::bf16, 1 / std::sqrt(static_cast<float>(cols))),
               x = random({tokens, cols}, DType::f32, 100), out = nans({tokens, rows}), bias = random({rows});
    const std::vector<WeightPart> host_parts = {{w.host, {}}}, device_parts = {{w.device, {}}};
    for (const bool with_bias : {false, true}) {
      const Linear host{out.host, x.host, {host_parts, rows, cols}, with_bias ? bias.host : Tensor{}};
      const Linear device{
          out.device, x.device, {device_parts, rows, cols}, with_bias ? bias.device : Tensor{}};
      expect_entries_agree(
          host, device, out, 3e-6, 6e-3,
          std::to_string(tokens) + " by " + std::to_string(rows) + "x" + std::to_string(cols), 2);
    }
  }
}

TEST_F(GpuOps, GatedProductsAgree) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& [half, cols] : {std::pair<int64_t, int64_t>{1, 8}, {9, 24}, {130, 1032}}) {
      for (const int64_t tokens : {1, 2, 4, 6, 8, 40}) {
        for (const Precision precision : {Precision::exact, Precision::fast}) {
          const Twin w = random({2 * half, cols}, dtype, 1 / std::sqrt(static_cast<float>(cols))),
                     x = random({tokens, cols}), out = nans({tokens, half}), bias = random({2 * half});
          std::vector<WeightPart> host_parts = {{w.host, {}}}, device_parts = {{w.device, {}}};
          if (tokens % 4 == 0) device_parts = {{w.device.rows(0, half), {}}, {w.device.rows(half, half), {}}};
          const bool with_bias = tokens > 2;
          const GatedUp host{
              out.host, x.host, {host_parts, 2 * half, cols}, with_bias ? bias.host : Tensor{}};
          const GatedUp device{
              out.device,       x.device, {device_parts, 2 * half, cols}, with_bias ? bias.device : Tensor{},
              Activation::silu, precision};
          expect_entries_agree(host, device, out, 5e-6, 2e-2,
                               std::string(dtype_name(dtype)) + " half " + std::to_string(half) + " tokens " +
                                   std::to_string(tokens));
        }
      }
    }
  }
}

TEST_F(GpuOps, RopeAnglesAgree) {
  const std::vector<int32_t> positions = {0, 1, 77, 131071, 2000}, lengths = {10, 100, 100, 140000, 2500};
  std::vector<float> inv_freq(32);
  for (size_t i = 0; i < inv_freq.size(); ++i) inv_freq[i] = std::pow(10000.0f, -static_cast<float>(i) / 32);
  const auto p = upload_span(positions), l = upload_span(lengths);
  const auto f = upload_span(inv_freq);
  for (const bool dynamic : {false, true}) {
    const Twin cos = nans({5, 32}), sin = nans({5, 32});
    ComputeRopeAngles host{{cos.host, sin.host}, positions, inv_freq};
    ComputeRopeAngles device{{cos.device, sin.device}, p, f};
    host.magnitude = device.magnitude = 1.25f;
    if (dynamic) {
      host.lengths = lengths;
      device.lengths = l;
      host.theta = device.theta = 10000;
      host.factor = device.factor = 2;
      host.original_length = device.original_length = 64;
    }
    expect_entries_agree(host, device, cos, 1e-6, 0, dynamic ? "dynamic" : "plain");
    EXPECT_LT(error_of(sin), 1e-6);
  }
}

using GpuAttention = GpuPaged;

TEST_F(GpuAttention, PagedAttentionAgrees) {
  int32_t variant = 0;
  const std::vector<std::pair<int32_t, int32_t>> batches[] = {{{1, 0}},
                                                              {{1, 700}, {1, 70}, {1, 3}, {1, 31}, {1, 1200}},
                                                              {{1, 16}, {1, 70}, {40, 0}, {5, 130}},
                                                              {{33, 31}, {1, 3000}}};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f8e4m3}) {
    for (auto [heads, kv_heads] : {std::pair<int32_t, int32_t>{1, 1}, {7, 1}, {6, 2}, {8, 2}, {20, 2}}) {
      for (const int32_t dim : {5, 8, 64, 72, 128, 256, 300}) {
        for (const auto& lengths : batches) {
          constexpr int32_t kWindows[] = {0, 1, 5, 0, 33, 100};
          const int32_t window = kWindows[++variant % 6], block_size = variant % 4 == 0 ? 5 : 16;
          PagedRows& p = paged(lengths, block_size);
          const int64_t tokens = p.host_batch.tokens;
          const Twin k = random({p.blocks, kv_heads, block_size, dim}, dtype),
                     v = random({p.blocks, kv_heads, block_size, dim}, dtype);
          const Twin q = random({tokens, (heads + 2 * kv_heads) * dim}), out = nans({tokens, heads * dim}),
                     sinks = random({heads});
          const bool with_sinks = variant % 3 == 0;
          PagedAttention host{
              out.host, q.host,   k.host, v.host, with_sinks ? sinks.host : Tensor{},    &p.host_batch,
              heads,    kv_heads, dim,    window, 1 / std::sqrt(static_cast<float>(dim))};
          if (dtype == DType::f8e4m3) host.scales = {0.75f, 1.5f};
          PagedAttention device = host;
          device.out = out.device;
          device.q = q.device;
          device.k_cache = k.device;
          device.v_cache = v.device;
          device.sinks = with_sinks ? sinks.device : Tensor{};
          device.batch = &p.device_batch;
          expect_entries_agree(
              host, device, out, 5e-6, 1e-2,
              std::string(dtype_name(dtype)) + " heads " + std::to_string(heads) + "/" +
                  std::to_string(kv_heads) + " dim " + std::to_string(dim) + " window " +
                  std::to_string(window),
              dtype != DType::f32 && (dim == 64 || dim == 128 || dim == 256) && lengths.back().first > 1 ? 2
                                                                                                         : 1);
          memory_.clear();
          buffers_.clear();
        }
      }
    }
  }
}

TEST_F(GpuAttention, RopeStoreAgrees) {
  int32_t variant = 0;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f8e4m3}) {
    for (const int32_t dim : {4, 24, 80, 128, 256}) {
      for (const int32_t rotary : {0, dim, dim / 2}) {
        ++variant;
        PagedRows& p = paged({{5, 17}, {1, 0}, {30, 2}}, variant % 2 == 0 ? 16 : 3);
        const int32_t heads = 4, kv_heads = 2;
        const int64_t tokens = p.host_batch.tokens, width = (heads + 2 * kv_heads) * dim;
        const Twin qkv = random({tokens, width}), cos = random({tokens, std::max(1, rotary / 2)}),
                   sin = random({tokens, std::max(1, rotary / 2)}), q_norm = random({dim}),
                   k_norm = random({dim});
        const int64_t cache_elements = int64_t{p.blocks} * kv_heads * p.host_batch.block_size * dim;
        const std::vector<float> zeros(static_cast<size_t>(cache_elements));
        const Twin k = twin(zeros, dtype, {p.blocks, kv_heads, p.host_batch.block_size, dim}),
                   v = twin(zeros, dtype, {p.blocks, kv_heads, p.host_batch.block_size, dim});
        QkNormRopeStore host{.qkv = qkv.host, .k_cache = k.host, .v_cache = v.host, .batch = &p.host_batch};
        QkNormRopeStore device{
            .qkv = qkv.device, .k_cache = k.device, .v_cache = v.device, .batch = &p.device_batch};
        if (variant % 2 == 0) {
          host.q_norm = q_norm.host, host.k_norm = k_norm.host;
          device.q_norm = q_norm.device, device.k_norm = k_norm.device;
        }
        if (rotary > 0) {
          host.rope = {cos.host, sin.host};
          device.rope = {cos.device, sin.device};
        }
        for (auto* op : {&host, &device}) {
          op->heads = heads, op->kv_heads = kv_heads, op->head_dim = dim, op->rotary_dim = rotary;
          op->rope_interleaved = variant % 4 == 0;
          op->norm_eps = 1e-6f;
          if (dtype == DType::f8e4m3) op->scales = {0.003f, 1.7f};  // some keys saturate
        }
        impls<QkNormRopeStore>().back().run(cpu_, host);
        run(*gpu_, device);
        EXPECT_LT(error_of(qkv), 1e-6) << "dim " << dim << " rotary " << rotary;
        for (const Twin* cache : {&k, &v}) {
          const int64_t differ = differing(cache->host, bytes_of(cache->device));
          EXPECT_LE(differ, dtype == DType::f32 ? 0 : cache_elements / 500)
              << dtype_name(dtype) << " dim " << dim;
        }
      }
    }
  }
}

TEST_F(GpuAttention, E4m3SaturatesAndKeepsNaN) {
  PagedRows& p = paged({{1, 3}}, 4);
  const std::vector<float> zeros(static_cast<size_t>(p.blocks * 4 * 8));
  const Twin k = twin(zeros, DType::f8e4m3, {p.blocks, 1, 4, 8}),
             v = twin(zeros, DType::f8e4m3, {p.blocks, 1, 4, 8});
  const float nan = std::nanf("");
  const Twin qkv = twin({0,    0,    0,   0,       0,        0,         0,       0,      //
                         1000, -500, nan, 0x1p-9f, 0x1p-10f, 0x1.8p-9f, -0.017f, 17.0f,  //
                         449,  465,  nan, 1.0625f, 1.1875f,  -0.0f,     1e-30f,  INFINITY},
                        DType::f32, {1, 24});
  QkNormRopeStore op{.qkv = qkv.host, .k_cache = k.host, .v_cache = v.host, .batch = &p.host_batch};
  op.heads = op.kv_heads = 1, op.head_dim = 8;
  run(cpu_, op);
  op.qkv = qkv.device, op.k_cache = k.device, op.v_cache = v.device, op.batch = &p.device_batch;
  run(*gpu_, op);
  for (const Twin* cache : {&k, &v}) {
    const auto got = bytes_of(cache->device);
    for (size_t i = 0; i < got.size(); ++i) {
      const float want = f8e4m3_to_f32(cache->host.as<uint8_t>()[i]);
      const float have = f8e4m3_to_f32(std::to_integer<uint8_t>(got[i]));
      EXPECT_TRUE(want == have || (std::isnan(want) && std::isnan(have)))
          << i << ": " << want << ", " << have;
    }
  }
}

TEST_F(GpuAttention, PaddingRowsStoreNothingAndGiveZeros) {
  for (const auto& [dtype, dim] : {std::pair{DType::f32, 8}, {DType::bf16, 64}, {DType::f8e4m3, 128}}) {
    PagedRows& p = paged({{1, 20}, {1, 5}}, 16);
    p.placed[1].block_table = nullptr;
    p.device_batch.sequences = upload_span(p.placed);
    const std::vector<float> sevens(static_cast<size_t>(p.blocks * 16 * dim), 7.0f);
    const Twin k = twin(sevens, dtype, {p.blocks, 1, 16, dim}),
               v = twin(sevens, dtype, {p.blocks, 1, 16, dim});
    const Twin qkv = random({2, 3 * dim}), out = nans({2, dim});
    const auto before = bytes_of(k.device);
    run(*gpu_, QkNormRopeStore{.qkv = qkv.device,
                               .k_cache = k.device,
                               .v_cache = v.device,
                               .batch = &p.device_batch,
                               .heads = 1,
                               .kv_heads = 1,
                               .head_dim = dim});
    run(*gpu_, PagedAttention{.out = out.device,
                              .q = qkv.device,
                              .k_cache = k.device,
                              .v_cache = v.device,
                              .batch = &p.device_batch,
                              .heads = 1,
                              .kv_heads = 1,
                              .head_dim = dim,
                              .scale = 1});
    const auto after = bytes_of(k.device);
    const auto slot = static_cast<size_t>(dtype_bytes(dtype, dim));
    int64_t changed = 0;
    for (size_t i = 0; i < after.size(); i += slot)
      changed += std::memcmp(&after[i], &before[i], slot) != 0 ? 1 : 0;
    EXPECT_EQ(changed, 1);  // the one slot of the sequence that is not padding
    const auto values = floats_of(out.device);
    for (int d = 0; d < dim; ++d) {
      EXPECT_FALSE(std::isnan(values[d]));
      EXPECT_EQ(values[dim + d], 0);
    }
  }
}

TEST_F(GpuOps, ARecordedGraphRepeatsItsWork) {
  const Twin x = random({4, 256}), y = random({4, 256}), w = random({256}), out = nans({4, 256});
  const AddRmsNorm op{out.device, x.device, y.device, w.device, 1e-5f};
  queue_->begin_recording();
  run(*gpu_, op);
  const auto graph = queue_->end_recording();
  queue_->start(*graph);
  queue_->start(*graph);
  queue_->wait();
  const auto sums = floats_of(x.device);
  for (size_t i = 0; i < sums.size(); ++i) {
    ASSERT_NEAR(sums[i], x.host.as<float>()[i] + 2 * y.host.as<float>()[i], 1e-5);
  }
}

}  // namespace
}  // namespace atom::ops
