// The indexer on a GPU, each entry against the CPU reference.
#include <set>

#include "ops/gpu/device_paged.h"
#include "ops/indexer.h"

namespace atom::ops {
namespace {

class GpuIndexer : public GpuPaged {
 protected:
  Twin selection(int64_t tokens, int64_t k) {
    auto& bytes = memory_.emplace_back(static_cast<size_t>(tokens * k * 4));
    auto* chosen = reinterpret_cast<int32_t*>(bytes.data());
    std::fill_n(chosen, tokens * k, -7);  // rows that choose nothing keep it
    return {make_tensor(chosen, DType::i32, {tokens, k}),
            make_tensor(upload(chosen, tokens * k * 4), DType::i32, {tokens, k}, device_)};
  }
  std::vector<int32_t> ints_of(const Tensor& t) {
    const auto bytes = bytes_of(t);
    std::vector<int32_t> values(bytes.size() / 4);
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  // Small whole numbers: every score is exact whatever the order of its sums and types, and many are equal.
  Twin whole(std::initializer_list<int64_t> shape, DType dtype, int from, int to) {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    std::uniform_int_distribution<int> values(from, to);
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = static_cast<float>(values(rng_));
    return twin(x, dtype, shape);
  }
  // A scale for each key of a cache of E4M3, null for another.
  Twin scales(DType dtype, const PagedRows& p) {
    if (dtype != DType::f8e4m3) return {};
    const Twin exponents = whole({p.blocks, p.host_batch.block_size}, DType::f32, -1, 1);
    std::vector<float> powers(exponents.host.as<float>(),
                              exponents.host.as<float>() + exponents.host.elements());
    for (float& x : powers) x = std::exp2(x);
    return twin(powers, DType::f32, {p.blocks, p.host_batch.block_size});
  }
};

TEST_F(GpuIndexer, StoresAgree) {
  int variant = 0;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16, DType::f8e4m3}) {
    for (const IndexShape s : {IndexShape{3, 10, 4}, IndexShape{1, 520, 520}, IndexShape{32, 128, 64}}) {
      for (const bool interleaved : {false, true}) {
        PagedRows& p = paged({{5, 17}, {1, 0}, {9, 2}}, ++variant % 2 == 0 ? 16 : 3);
        const int64_t tokens = p.host_batch.tokens;
        const Twin q = random({tokens, s.heads * s.head_dim}), k = random({tokens, s.head_dim + 5}),
                   weight = random({s.head_dim}), bias = random({s.head_dim}),
                   cos = random({tokens, s.rope_dim / 2}), sin = random({tokens, s.rope_dim / 2}),
                   cache = random({p.blocks, 1, p.host_batch.block_size, s.head_dim}, dtype),
                   unit = scales(dtype, p);
        IndexStore host{.q = q.host,
                        .k = k.host.cols(0, s.head_dim),
                        .norm_weight = weight.host,
                        .norm_bias = bias.host,
                        .cache = cache.host,
                        .batch = &p.host_batch,
                        .rope = {cos.host, sin.host},
                        .shape = s,
                        .rope_interleaved = interleaved,
                        .norm_eps = 1e-6f,
                        .scales = unit.host};
        IndexStore device = host;
        device.q = q.device;
        device.k = k.device.cols(0, s.head_dim);
        device.norm_weight = weight.device;
        device.norm_bias = bias.device;
        device.cache = cache.device;
        device.batch = &p.device_batch;
        device.rope = {cos.device, sin.device};
        device.scales = unit.device;
        check(device);
        impls<IndexStore>().back().run(cpu_, host);
        run(*gpu_, device);
        EXPECT_LT(error_of(q), 1e-6);
        EXPECT_LE(differing(cache.host, bytes_of(cache.device)),
                  dtype == DType::f32 ? 0 : cache.host.elements() / 500);
        if (unit.host) {
          EXPECT_EQ(std::memcmp(unit.host.data, bytes_of(unit.device).data(), unit.host.bytes()), 0);
        }
        forget();
      }
    }
  }
}

// From the smallest scale there is, over those where a power of two ends, to keys that are no numbers.
TEST_F(GpuIndexer, ScalesOfKeysAreThoseOfTheCpu) {
  const IndexShape s{1, 128, 64};
  const float largest[] = {0,      1e-30f,  9.9e-5f, 1.01e-4f, 1.749999f, 1.75f,    1.7500002f,   111.99f,
                           112.0f, 112.01f, 448,     1e30f,    3.4e38f,   INFINITY, std::nanf("")};
  const auto rows = static_cast<int32_t>(std::size(largest));
  PagedRows& p = paged({{rows, 3}}, 4);
  std::vector<float> lanes(static_cast<size_t>(rows) * 128);
  for (int32_t t = 0; t < rows; ++t) lanes[static_cast<size_t>(t) * 128 + 100] = largest[t];
  // Weights of 0 leave the bias alone, which is the same for all rows; so each row is stored by a call.
  const Twin q = random({rows, 128}), k = random({rows, 128}),
             zero = twin(std::vector<float>(128), DType::f32, {128}), cos = random({rows, 32}),
             sin = random({rows, 32}), cache = random({p.blocks, 1, 4, 128}, DType::f8e4m3),
             unit = scales(DType::f8e4m3, p);
  for (int32_t t = 0; t < rows; ++t) {
    const std::vector<float> row(lanes.begin() + t * 128, lanes.begin() + (t + 1) * 128);
    const Twin bias = twin(row, DType::f32, {128});
    IndexStore host{.q = q.host,
                    .k = k.host,
                    .norm_weight = zero.host,
                    .norm_bias = bias.host,
                    .cache = cache.host,
                    .batch = &p.host_batch,
                    .rope = {cos.host, sin.host},
                    .shape = s,
                    .norm_eps = 1e-6f,
                    .scales = unit.host};
    IndexStore device = host;
    device.q = q.device;
    device.k = k.device;
    device.norm_weight = zero.device;
    device.norm_bias = bias.device;
    device.cache = cache.device;
    device.batch = &p.device_batch;
    device.rope = {cos.device, sin.device};
    device.scales = unit.device;
    run(cpu_, host);
    run(*gpu_, device);
    const std::vector<float> got = floats_of(unit.device);
    for (size_t i = 0; i < got.size(); ++i) {
      const float want = unit.host.as<float>()[i];
      EXPECT_TRUE(got[i] == want || (std::isnan(got[i]) && std::isnan(want)))
          << largest[t] << ": " << got[i] << " for " << want;
    }
    EXPECT_EQ(differing(cache.host, bytes_of(cache.device)), 0) << largest[t];
  }
}

constexpr DType kKeys[] = {DType::f32, DType::bf16, DType::f16, DType::f8e4m3};
constexpr IndexShape kShapes[] = {{3, 10, 4}, {5, 128, 64}};

// By places in kKeys and kShapes.
class GpuIndexerOfAllKinds : public GpuIndexer, public testing::WithParamInterface<std::tuple<int, int>> {};

INSTANTIATE_TEST_SUITE_P(, GpuIndexerOfAllKinds,
                         testing::Combine(testing::Range(0, 4), testing::Range(0, 2)));

TEST_P(GpuIndexerOfAllKinds, ChoosesThePositionsOfTheReferenceTiesIncluded) {
  const auto [of_keys, of_shape] = GetParam();
  const DType dtype = kKeys[of_keys];
  const IndexShape s = kShapes[of_shape];
  const std::vector<std::pair<int32_t, int32_t>> batches[] = {
      {{1, 40}}, {{1, 700}, {1, 70}, {1, 3}, {1, 5000}}, {{1, 16}, {40, 0}, {5, 1300}}, {{1, 20000}}};
  int variant = 24 * of_keys + 12 * of_shape;
  for (const auto& lengths : batches) {
    for (const int64_t k : {1, 7, 300}) {
      PagedRows& p = paged(lengths, ++variant % 2 == 0 ? 16 : 5);
      const int64_t tokens = p.host_batch.tokens;
      const int spread = variant % 4 == 0 ? 0 : 2;  // 0: all scores are equal
      const Twin q = whole({tokens, s.heads * s.head_dim}, DType::f32, -spread, spread),
                 weights = whole({tokens, s.heads}, DType::f32, -3, 3),
                 cache = whole({p.blocks, 1, p.host_batch.block_size, s.head_dim}, dtype, -2, 2),
                 unit = scales(dtype, p);
      const Twin chosen = selection(tokens, k);
      IndexSelect host{chosen.host, q.host, weights.host, cache.host, &p.host_batch, s, unit.host};
      IndexSelect device{chosen.device,   q.device, weights.device, cache.device,
                         &p.device_batch, s,        unit.device};
      check(device);
      std::vector<Impl<IndexSelect>> entries;
      for (const Impl<IndexSelect>& impl : gpu_impls<IndexSelect>()) {
        if (impl.refuse(*gpu_, device) == nullptr) entries.push_back(impl);
      }
      EXPECT_EQ(entries.size(), s.head_dim == 128 && dtype != DType::f32 ? 2 : 1);
      const std::vector<int32_t> before(chosen.host.as<int32_t>(), chosen.host.as<int32_t>() + tokens * k);
      impls<IndexSelect>().back().run(cpu_, host);
      const std::vector<int32_t> want(chosen.host.as<int32_t>(), chosen.host.as<int32_t>() + tokens * k);
      for (const Impl<IndexSelect>& impl : entries) {
        queue_->copy_to_device(chosen.device.data, before.data(), chosen.device.bytes());
        queue_->wait();
        impl.run(*gpu_, device);
        ASSERT_EQ(ints_of(chosen.device), want) << impl.name << " " << dtype_name(dtype) << " rows " << tokens
                                                << " k " << k << " spread " << spread;
      }
      forget();
    }
  }
}

struct Candidates {
  std::vector<int32_t> contexts;  // of sequences
  int64_t k;
};
class GpuIndexerOfMany : public GpuIndexer, public testing::WithParamInterface<Candidates> {};

INSTANTIATE_TEST_SUITE_P(, GpuIndexerOfMany,
                         testing::Values(Candidates{{70000}, 2048}, Candidates{{2048}, 2048},
                                         Candidates{{16383}, 2048},
                                         Candidates{{20000, 5000, 2047, 41000}, 2048},
                                         Candidates{{40000, 3000, 700}, 513}));

// More candidates than blocks keep in registers, and all blocks of a cluster or some of them at work.
TEST_P(GpuIndexerOfMany, ChoosesThePositionsOfTheReference) {
  const IndexShape s{2, 128, 64};
  const auto& [contexts, k] = GetParam();
  std::vector<std::pair<int32_t, int32_t>> lengths;
  for (const int32_t context : contexts) lengths.emplace_back(1, context);
  for (const int spread : {0, 1, 40}) {
    const DType dtype = spread == 1 ? DType::f8e4m3 : DType::bf16;
    PagedRows& p = paged(lengths, 16);
    const int64_t tokens = p.host_batch.tokens;
    const Twin q = whole({tokens, s.heads * s.head_dim}, DType::f32, -spread, spread),
               weights = whole({tokens, s.heads}, DType::f32, -3, 3),
               cache = whole({p.blocks, 1, 16, s.head_dim}, dtype, -2, 2), unit = scales(dtype, p),
               chosen = selection(tokens, k);
    const IndexSelect device{chosen.device,   q.device, weights.device, cache.device,
                             &p.device_batch, s,        unit.device};
    check(device);
    for (int repeat = 0; repeat < 2; ++repeat) run(*gpu_, device);
    impls<IndexSelect>().back().run(
        cpu_, IndexSelect{chosen.host, q.host, weights.host, cache.host, &p.host_batch, s, unit.host});
    const std::vector<int32_t> want(chosen.host.as<int32_t>(), chosen.host.as<int32_t>() + tokens * k);
    ASSERT_EQ(ints_of(chosen.device), want) << "spread " << spread;
    forget();
  }
}

TEST_F(GpuIndexer, RoundedScoresChooseNearlyTheSame) {
  const IndexShape s{32, 128, 64};
  for (const DType dtype : {DType::bf16, DType::f8e4m3}) {
    PagedRows& p = paged({{1, 4000}, {1, 9000}}, 16);
    const Twin q = random({2, s.heads * s.head_dim}), weights = random({2, s.heads}),
               cache = random({p.blocks, 1, 16, s.head_dim}, dtype), unit = scales(dtype, p),
               chosen = selection(2, 2048);
    run(cpu_, IndexSelect{chosen.host, q.host, weights.host, cache.host, &p.host_batch, s, unit.host});
    run(*gpu_,
        IndexSelect{chosen.device, q.device, weights.device, cache.device, &p.device_batch, s, unit.device});
    const auto got = ints_of(chosen.device);
    for (int64_t t = 0; t < 2; ++t) {
      const int32_t* want = chosen.host.row<int32_t>(t);
      const std::set<int32_t> all(want, want + 2048);
      int common = 0;
      for (int64_t i = 0; i < 2048; ++i) {
        common += all.contains(got[t * 2048 + i]);
        if (i > 0) {
          ASSERT_LT(got[t * 2048 + i - 1], got[t * 2048 + i]);
        }
      }
      EXPECT_GT(common, dtype == DType::bf16 ? 2028 : 2043) << t;  // queries in f16 have three bits more
    }
  }
}

TEST_F(GpuIndexer, PaddingRowsChooseNothing) {
  const IndexShape s{4, 128, 64};
  PagedRows& p = paged({{1, 500}, {1, 500}}, 16);
  pad_first(p);
  const Twin q = random({2, s.heads * s.head_dim}), weights = random({2, s.heads}),
             cache = random({p.blocks, 1, 16, s.head_dim}, DType::bf16), chosen = selection(2, 9);
  run(*gpu_, IndexSelect{chosen.device, q.device, weights.device, cache.device, &p.device_batch, s});
  const auto got = ints_of(chosen.device);
  for (int64_t i = 0; i < 9; ++i) {
    EXPECT_EQ(got[i], -7);
    EXPECT_GE(got[9 + i], 0);
  }
}

}  // namespace
}  // namespace atom::ops
