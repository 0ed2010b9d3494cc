// Attention from qkv rows on a GPU, each entry against the CPU: shapes, windows, gates, splits, paddings.
// Slots that no row may see hold numbers that are not.
#include "ops/attend.h"
#include "ops/gpu/device_paged.h"
#include "ops/linear.h"

namespace atom::ops {
namespace {

struct AttendCase {
  DType dtype = DType::bf16;
  int32_t heads = 8, kv_heads = 2, head_dim = 128;
  int32_t rotary_dim = 0;
  int32_t window = 0, block_size = 16;
  bool interleaved = false, normed = false, sinks = false, gated = false;
  bool known = false;  // by the host
  KvScales scales;

  std::string name() const {
    return fmt::format("{} heads {}/{} of {} rotary {} window {} block {}", dtype_name(dtype), heads,
                       kv_heads, head_dim, rotary_dim, window, block_size);
  }
};

class GpuAttend : public GpuPaged {
 protected:
  // A cache in which only what the step's rows see of their contexts is a number.
  Twin cache(const PagedRows& p, const AttendCase& c) {
    const int64_t per_block = int64_t{c.kv_heads} * c.block_size * c.head_dim;
    const float hidden = c.dtype == DType::f32 ? 1e30f : std::nanf("");  // compared as bits if 16 are left
    std::vector<float> values(static_cast<size_t>(p.blocks * per_block), hidden);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < p.host.size(); ++i) {
      const int32_t context = p.host[i].context;
      for (int32_t key = c.window > 0 ? std::max(0, context - c.window + 1) : 0; key < context; ++key) {
        const int64_t block = p.tables[i][key / c.block_size];
        for (int32_t h = 0; h < c.kv_heads; ++h) {
          float* slot =
              values.data() + ((block * c.kv_heads + h) * c.block_size + key % c.block_size) * c.head_dim;
          for (int32_t d = 0; d < c.head_dim; ++d) slot[d] = normal(rng_);
        }
      }
    }
    return twin(values, c.dtype, {p.blocks, c.kv_heads, c.block_size, c.head_dim});
  }

  // `fused`: the entry for decodes must take it.
  void expect_agrees(const AttendCase& c, const std::vector<std::pair<int32_t, int32_t>>& lengths,
                     bool fused) {
    PagedRows& p = paged(lengths, c.block_size);
    if (c.known) p.device_batch.known = p.placed;
    const int64_t tokens = p.host_batch.tokens, width = int64_t{c.heads + 2 * c.kv_heads} * c.head_dim;
    const Twin k = cache(p, c), v = cache(p, c), rows = random({tokens, width}),
               out = nans({tokens, c.heads * c.head_dim}), q_norm = random({c.head_dim}),
               k_norm = random({c.head_dim}), angles = random({2 * tokens, std::max(1, c.rotary_dim / 2)}),
               sinks = random({c.heads}), gate = random({tokens, c.heads * c.head_dim + 4});
    const auto k_before = bytes_of(k.device), v_before = bytes_of(v.device),
               rows_before = bytes_of(rows.device);
    auto op_of = [&](Tensor Twin::*side, const AttentionBatch& batch) {
      Attend op{.store = {.qkv = rows.*side, .k_cache = k.*side, .v_cache = v.*side, .batch = &batch},
                .attention = {.out = out.*side,
                              .q = rows.*side,
                              .k_cache = k.*side,
                              .v_cache = v.*side,
                              .batch = &batch,
                              .window = c.window,
                              .scale = 0.9f / std::sqrt(static_cast<float>(c.head_dim))}};
      if (c.normed) op.store.q_norm = q_norm.*side, op.store.k_norm = k_norm.*side;
      if (c.rotary_dim > 0)
        op.store.rope = {(angles.*side).rows(0, tokens), (angles.*side).rows(tokens, tokens)};
      if (c.sinks) op.attention.sinks = sinks.*side;
      if (c.gated) op.gate = (gate.*side).cols(4, c.heads * c.head_dim);
      op.store.heads = op.attention.heads = c.heads;
      op.store.kv_heads = op.attention.kv_heads = c.kv_heads;
      op.store.head_dim = op.attention.head_dim = c.head_dim;
      op.store.rotary_dim = c.rotary_dim;
      op.store.rope_interleaved = c.interleaved;
      op.store.norm_eps = 1e-6f;
      op.store.scales = op.attention.scales = c.scales;
      op.store.norm_weight_offset = c.normed && c.gated ? 1 : 0;
      return op;
    };
    const Attend host = op_of(&Twin::host, p.host_batch), device = op_of(&Twin::device, p.device_batch);
    impls<QkNormRopeStore>().back().run(cpu_, host.store);
    impls<PagedAttention>().back().run(cpu_, host.attention);
    if (host.gate) run(cpu_, SigmoidGate{host.attention.out, host.gate});

    check(device);
    std::vector<std::string> took;
    for (const Impl<Attend>& impl : gpu_impls<Attend>()) {
      if (impl.refuse(*gpu_, device) != nullptr) continue;
      took.emplace_back(impl.name);
      const std::vector<float> poison(static_cast<size_t>(out.device.elements()), std::nanf(""));
      queue_->copy_to_device(out.device.data, poison.data(), out.device.bytes());
      queue_->copy_to_device(k.device.data, k_before.data(), k.device.bytes());
      queue_->copy_to_device(v.device.data, v_before.data(), v.device.bytes());
      queue_->copy_to_device(rows.device.data, rows_before.data(), rows.device.bytes());
      queue_->wait();
      for (int repeat = 0; repeat < 2; ++repeat) {  // counters are left as they were found
        queue_->copy_to_device(rows.device.data, rows_before.data(), rows.device.bytes());
        impl.run(*gpu_, device);
        queue_->wait();
        // About 1e-5 from 16 bits of queries and weights; a new key or value at the edge of two roundings may
        // fall to either. The kernels that are composed round queries and weights once.
        const bool rounds = took.back() != "attend.decode" && c.dtype != DType::f32;
        EXPECT_LT(error_of(out), rounds                     ? 1e-2
                                 : c.dtype == DType::f32    ? 1e-5
                                 : c.dtype == DType::f8e4m3 ? 1e-3
                                                            : 3e-4)
            << impl.name << " " << c.name();
      }
      for (const Twin* t : {&k, &v}) {
        const int64_t stored = tokens * c.kv_heads * c.head_dim;
        EXPECT_LE(differing(t->host, bytes_of(t->device)), c.dtype == DType::f32 ? 0 : 1 + stored / 200)
            << impl.name << " " << c.name();
      }
    }
    EXPECT_EQ(!took.empty() && took.front() == "attend.decode", fused) << c.name();
    EXPECT_EQ(!took.empty() && took.front() == "attend.mixed", c.known) << c.name();
    forget();
  }
};

constexpr DType kCaches[] = {DType::bf16, DType::f16, DType::f8e4m3};
constexpr std::pair<int32_t, int32_t> kHeads[] = {{1, 1}, {6, 2}, {8, 2}, {16, 2}, {20, 2}, {24, 1}};

// By places in kCaches and kHeads.
class GpuDecodes : public GpuAttend, public testing::WithParamInterface<std::tuple<int, int>> {};

TEST_P(GpuDecodes, Agree) {
  const auto [of_cache, of_heads] = GetParam();
  const DType dtype = kCaches[of_cache];
  const auto [heads, kv_heads] = kHeads[of_heads];
  const std::vector<std::pair<int32_t, int32_t>> batches[] = {
      {{1, 0}}, {{1, 129}}, {{1, 1000}, {1, 15}, {1, 0}, {1, 16}, {1, 17}}, {{1, 5000}, {1, 256}}};
  int variant = 72 * of_cache + 12 * of_heads;
  for (const int32_t dim : {64, 128, 256}) {
    for (const auto& lengths : batches) {
      ++variant;
      constexpr int32_t kWindows[] = {0, 0, 1, 100, 0, 128, 33};
      expect_agrees({.dtype = dtype,
                     .heads = heads,
                     .kv_heads = kv_heads,
                     .head_dim = dim,
                     .rotary_dim = variant % 5 == 0   ? 0
                                   : variant % 3 == 0 ? dim / 4
                                                      : dim,
                     .window = kWindows[variant % 7],
                     .block_size = variant % 4 == 0 ? 64 : 16,
                     .interleaved = variant % 4 == 1,
                     .normed = variant % 2 == 0,
                     .sinks = variant % 3 == 1,
                     .gated = variant % 5 < 2,
                     .scales = dtype == DType::f8e4m3 ? KvScales{0.75f, 1.5f} : KvScales{}},
                    lengths, true);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, GpuDecodes, testing::Combine(testing::Range(0, 3), testing::Range(0, 6)));

TEST_F(GpuAttend, ManySequencesAndLongContextsAgree) {
  std::vector<std::pair<int32_t, int32_t>> many;
  for (int32_t i = 0; i < 300; ++i) many.emplace_back(1, i * 37 % 333);
  expect_agrees({.heads = 8, .kv_heads = 2, .head_dim = 128, .rotary_dim = 128}, many, true);
  many.emplace_back(1, 20000);  // shared by splits although sequences alone fill the device
  expect_agrees({.heads = 2, .kv_heads = 1, .head_dim = 64, .rotary_dim = 64}, many, true);
  expect_agrees({.heads = 4, .kv_heads = 1, .head_dim = 128, .rotary_dim = 128, .normed = true}, {{1, 70000}},
                true);
  expect_agrees({.heads = 4, .kv_heads = 1, .head_dim = 64, .window = 4096, .block_size = 32, .sinks = true},
                {{1, 60000}, {1, 9}}, true);
}

TEST_F(GpuAttend, OtherStepsAreComposed) {
  expect_agrees({.dtype = DType::f32, .rotary_dim = 128, .gated = true}, {{1, 200}, {1, 3}}, false);
  expect_agrees({.head_dim = 72, .rotary_dim = 36, .normed = true}, {{1, 200}, {1, 3}}, false);
  expect_agrees({.block_size = 5, .gated = true}, {{1, 200}, {1, 3}}, false);
  expect_agrees({.rotary_dim = 128, .normed = true, .gated = true}, {{1, 200}, {30, 3}}, false);
}

TEST_F(GpuAttend, DecodesBesidePromptsAgree) {
  const std::vector<std::pair<int32_t, int32_t>> lengths = {{1, 200}, {1, 3},    {1, 1000}, {1, 0}, {1, 17},
                                                            {40, 30}, {1, 2000}, {300, 0},  {2, 15}};
  for (const DType dtype : {DType::bf16, DType::f8e4m3}) {
    expect_agrees({.dtype = dtype, .rotary_dim = 128, .known = true}, lengths, false);
    expect_agrees({.dtype = dtype,
                   .heads = 16,
                   .head_dim = 64,
                   .rotary_dim = 64,
                   .window = 100,
                   .normed = true,
                   .sinks = true,
                   .gated = true,
                   .known = true},
                  lengths, false);
  }
}

// Attention that a product takes over and rounds gives it the same numbers as a kernel that rounds.
TEST_F(GpuAttend, AProductHasItsRowsRounded) {
  const auto entries = gpu_impls<Linear>();
  const auto library = std::ranges::find_if(
      entries, [](const auto& entry) { return entry.name == std::string_view("linear.cublaslt"); });
  constexpr int32_t kRows = 40, kHeads = 8, kKvHeads = 2, kDim = 64;
  std::vector<std::pair<int32_t, int32_t>> lengths;
  for (int32_t i = 0; i < kRows; ++i) lengths.emplace_back(1, i * 37);
  for (const DType dtype : {DType::bf16, DType::f16}) {
    PagedRows& p = paged(lengths, 16);
    pad_first(p);
    const Twin k = random({p.blocks, kKvHeads, 16, kDim}, DType::bf16),
               v = random({p.blocks, kKvHeads, 16, kDim}, DType::bf16),
               qkv = random({kRows, (kHeads + 2 * kKvHeads) * kDim}), rows = nans({kRows, kHeads * kDim}),
               out = nans({kRows, 72}), w = random({72, kHeads * kDim}, dtype);
    Attend op{
        .store = {.qkv = qkv.device, .k_cache = k.device, .v_cache = v.device, .batch = &p.device_batch},
        .attention = {.out = rows.device,
                      .q = qkv.device,
                      .k_cache = k.device,
                      .v_cache = v.device,
                      .batch = &p.device_batch,
                      .scale = 0.1f}};
    op.store.heads = op.attention.heads = kHeads;
    op.store.kv_heads = op.attention.kv_heads = kKvHeads;
    op.store.head_dim = op.attention.head_dim = kDim;
    const WeightPart part{w.device, {}};
    const Linear product{out.device, rows.device, Weight{{&part, 1}, 72, kHeads * kDim}, {}, Precision::fast};
    if (library == entries.end() || library->refuse(*gpu_, product) != nullptr)
      GTEST_SKIP() << "products of several rows read float32";
    auto result = [&](bool apart) {
      reset(rows);
      run(*gpu_, op);
      if (apart) queue_->wait();
      library->run(*gpu_, product);
      return bytes_of(out.device);
    };
    const auto together = result(false);
    EXPECT_TRUE(std::isnan(floats_of(rows.device).back())) << "attention has been started by itself";
    EXPECT_EQ(together, result(true));
    EXPECT_FALSE(std::isnan(floats_of(rows.device).back()));
    forget();
  }
}

TEST_F(GpuAttend, PaddingRowsStoreNothingAndGiveZeros) {
  PagedRows& p = paged({{1, 20}, {1, 5}}, 16);
  pad_first(p);
  const std::vector<float> sevens(static_cast<size_t>(p.blocks * 16 * 64), 7.0f);
  const Twin k = twin(sevens, DType::bf16, {p.blocks, 1, 16, 64}),
             v = twin(sevens, DType::bf16, {p.blocks, 1, 16, 64});
  const Twin qkv = random({2, 3 * 64}), out = nans({2, 64});
  const Attend op{.store = {.qkv = qkv.device,
                            .k_cache = k.device,
                            .v_cache = v.device,
                            .batch = &p.device_batch,
                            .heads = 1,
                            .kv_heads = 1,
                            .head_dim = 64},
                  .attention = {.out = out.device,
                                .q = qkv.device,
                                .k_cache = k.device,
                                .v_cache = v.device,
                                .batch = &p.device_batch,
                                .heads = 1,
                                .kv_heads = 1,
                                .head_dim = 64,
                                .scale = 1}};
  ASSERT_EQ(gpu_impls<Attend>().front().refuse(*gpu_, op), nullptr);
  run(*gpu_, op);
  EXPECT_LE(differing(k.host, bytes_of(k.device)), 64);  // the one slot of the sequence that is not padding
  EXPECT_GE(differing(k.host, bytes_of(k.device)), 60);
  const auto values = floats_of(out.device);
  for (int d = 0; d < 64; ++d) {
    EXPECT_EQ(values[d], 0);
    EXPECT_FALSE(std::isnan(values[64 + d]));
  }
}

}  // namespace
}  // namespace atom::ops
