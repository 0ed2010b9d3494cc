// Latent attention on a GPU, each entry against the CPU reference.
#include <array>

#include "ops/gpu/device_paged.h"
#include "ops/latent_attention.h"
#include "tensor/small_floats.h"

namespace atom::ops {
namespace {

class GpuLatent : public GpuPaged {
 protected:
  Twin cache_of(const PagedRows& p, DType dtype, int64_t entry) {
    return random({p.blocks, 1, p.host_batch.block_size, entry}, dtype, 0.5f);
  }
  // For every row k ascending positions that it sees; rows with no more than k keep what must not be read.
  std::pair<Tensor, Tensor> selection(const PagedRows& p, int64_t k) {
    const int64_t tokens = p.host_batch.tokens;
    auto& bytes = memory_.emplace_back(static_cast<size_t>(tokens * k * 4));
    auto* chosen = reinterpret_cast<int32_t*>(bytes.data());
    std::fill_n(chosen, tokens * k, -1000000);
    for (const AttentionSequence& s : p.host) {
      for (int32_t r = 0; r < s.rows; ++r) {
        std::vector<int32_t> all(static_cast<size_t>(s.context + r + 1));
        if (static_cast<int64_t>(all.size()) <= k) continue;
        std::iota(all.begin(), all.end(), 0);
        std::shuffle(all.begin(), all.end(), rng_);
        std::sort(all.begin(), all.begin() + k);
        std::copy_n(all.begin(), k, chosen + (s.first_row + r) * k);
      }
    }
    return {make_tensor(chosen, DType::i32, {tokens, k}),
            make_tensor(upload(chosen, tokens * k * 4), DType::i32, {tokens, k}, device_)};
  }
};

TEST_F(GpuLatent, StoresAgree) {
  int variant = 0;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const LatentShape s : {LatentShape{3, 5, 4, 7, 24}, LatentShape{16, 128, 64, 128, 512}}) {
      for (const bool interleaved : {false, true}) {
        PagedRows& p = paged({{5, 17}, {1, 0}, {9, 2}}, ++variant % 2 == 0 ? 16 : 3);
        const int64_t tokens = p.host_batch.tokens;
        const Twin q = random({tokens, s.heads * s.query_dim()}), kv = random({tokens, s.entry_dim() + 3}),
                   norm = random({s.kv_rank}), cos = random({tokens, s.rope_dim / 2}),
                   sin = random({tokens, s.rope_dim / 2});
        const Twin cache = cache_of(p, dtype, s.entry_dim());
        LatentStore host{.q = q.host,
                         .kv = kv.host.cols(2, s.entry_dim()),
                         .norm = norm.host,
                         .cache = cache.host,
                         .batch = &p.host_batch,
                         .rope = {cos.host, sin.host},
                         .shape = s,
                         .rope_interleaved = interleaved,
                         .norm_eps = 1e-6f};
        LatentStore device = host;
        device.q = q.device;
        device.kv = kv.device.cols(2, s.entry_dim());
        device.norm = norm.device;
        device.cache = cache.device;
        device.batch = &p.device_batch;
        device.rope = {cos.device, sin.device};
        impls<LatentStore>().back().run(cpu_, host);
        run(*gpu_, device);
        EXPECT_LT(error_of(q), 1e-6);
        EXPECT_LE(differing(cache.host, bytes_of(cache.device)),
                  dtype == DType::f32 ? 0 : cache.host.elements() / 500);
        forget();
      }
    }
  }
}

TEST_F(GpuLatent, HeadProductsAgree) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const auto& [heads, head_rows, first, rows, cols] :
         {std::tuple{3, 12, 5, 7, 24}, {2, 40, 0, 33, 512}, {5, 256, 128, 128, 512}, {3, 11, 2, 8, 13}}) {
      for (const int64_t tokens : {1, 2, 3, 8, 9, 70}) {
        for (const bool transposed : {false, true}) {
          for (const Precision precision : {Precision::exact, Precision::fast}) {
            const int64_t in = transposed ? cols : rows, out = transposed ? rows : cols;
            const int64_t x_stride = (in + 3) / 4 * 4 + 4, out_stride = out + 1;
            const Twin w = random({heads * head_rows, cols}, dtype, 0.1f),
                       x = random({tokens, heads * x_stride}),
                       y = twin(std::vector<float>(static_cast<size_t>(tokens * heads * out_stride)),
                                DType::f32, {tokens, heads * out_stride});
            const WeightPart host_part{w.host, {}}, device_part{w.device, {}};
            HeadProject host{y.host,     x.host,    {{&host_part, 1}, heads * head_rows, cols},
                             heads,      head_rows, first,
                             rows,       x_stride,  out_stride,
                             transposed, precision};
            HeadProject device = host;
            device.out = y.device;
            device.x = x.device;
            device.w.parts = {&device_part, 1};
            impls<HeadProject>().back().run(cpu_, host);
            check(device);
            for (const Impl<HeadProject>& impl : gpu_impls<HeadProject>()) {
              if (impl.refuse(*gpu_, device) != nullptr) continue;
              const std::vector<float> zeros(
                  static_cast<size_t>(y.host.elements()));  // gaps between heads stay
              queue_->copy_to_device(y.device.data, zeros.data(), y.device.bytes());
              queue_->wait();
              impl.run(*gpu_, device);
              const bool rounds = std::string_view(impl.name).ends_with("mma");
              EXPECT_LT(error_of(y), rounds ? 6e-3 : 3e-6)
                  << impl.name << " " << dtype_name(dtype) << " " << rows << "x" << cols << " tokens "
                  << tokens << (transposed ? " transposed" : "");
            }
          }
        }
        forget();
      }
    }
  }
}

TEST_F(GpuLatent, HeadProductsOfScaledWeightsAgree) {
  constexpr int64_t kHeads = 3, kHeadRows = 200, kCols = 512, kBlock = 128;
  std::vector<uint8_t> elements;
  for (const float x : normals(kHeads * kHeadRows * kCols)) elements.push_back(f32_to_f8e4m3(x * 40));
  const int64_t down = (kHeads * kHeadRows + kBlock - 1) / kBlock, across = kCols / kBlock;
  const Twin scales = random({down, across}, DType::f32, 0.01f);
  const WeightPart host_part{make_tensor(elements.data(), DType::f8e4m3, {kHeads * kHeadRows, kCols}),
                             {scales.host, kBlock, kBlock}};
  const WeightPart device_part{make_tensor(upload(elements.data(), host_part.data.bytes()), DType::f8e4m3,
                                           {kHeads * kHeadRows, kCols}, device_),
                               {scales.device, kBlock, kBlock}};
  for (const int64_t tokens : {1, 5, 70}) {
    for (const bool transposed : {false, true}) {
      const int32_t first = transposed ? 64 : 0, rows = transposed ? 136 : 64;
      const int64_t in = transposed ? kCols : rows, out = transposed ? rows : kCols;
      const Twin x = random({tokens, kHeads * in}), y = nans({tokens, kHeads * out});
      HeadProject host{y.host,
                       x.host,
                       {{&host_part, 1}, kHeads * kHeadRows, kCols},
                       kHeads,
                       kHeadRows,
                       first,
                       rows,
                       in,
                       out,
                       transposed,
                       Precision::fast};
      HeadProject device = host;
      device.out = y.device;
      device.x = x.device;
      device.w.parts = {&device_part, 1};
      expect_entries_agree(host, device, y, 3e-6, 6e-3,
                           std::to_string(tokens) + (transposed ? " tokens, transposed" : " tokens"),
                           tokens <= 8 ? 3 : 2);
    }
  }
}

TEST_F(GpuLatent, AttentionAgrees) {
  const std::vector<std::pair<int32_t, int32_t>> batches[] = {
      {{1, 0}}, {{1, 300}, {1, 70}, {1, 3}}, {{1, 16}, {12, 0}, {3, 90}}, {{1, 1500}}};
  int variant = 0;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const LatentShape s :
         {LatentShape{3, 5, 4, 7, 24}, LatentShape{9, 16, 64, 24, 512}, LatentShape{70, 12, 64, 16, 512}}) {
      for (const auto& lengths : batches) {
        for (const int64_t k : {0, 7, 70}) {
          if (s.heads > 9 && (dtype == DType::f32 || variant % 2 == 1)) {  // the reference is slow
            ++variant;
            continue;
          }
          PagedRows& p = paged(lengths, ++variant % 3 == 0 ? 5 : 16);
          const int64_t tokens = p.host_batch.tokens;
          const Twin cache = cache_of(p, dtype, s.entry_dim()), q = random({tokens, s.heads * s.query_dim()}),
                     out = nans({tokens, s.heads * s.v_dim}),
                     w = random({s.heads * (s.nope_dim + s.v_dim), s.kv_rank}, dtype, 0.1f);
          const WeightPart host_part{w.host, {}}, device_part{w.device, {}};
          LatentAttention host{.out = out.host,
                               .q = q.host,
                               .kv_b = {{&host_part, 1}, w.host.dim(0), s.kv_rank},
                               .cache = cache.host,
                               .batch = &p.host_batch,
                               .shape = s,
                               .scale = 0.2f};
          LatentAttention device = host;
          device.out = out.device;
          device.q = q.device;
          device.kv_b.parts = {&device_part, 1};
          device.cache = cache.device;
          device.batch = &p.device_batch;
          if (k > 0) std::tie(host.selected, device.selected) = selection(p, k);
          const bool fast = variant % 2 == 0;
          device.precision = fast ? Precision::fast : Precision::exact;
          expect_entries_agree(host, device, out, fast ? 2e-2 : 2e-5, 2e-2,
                               std::string(dtype_name(dtype)) + " heads " + std::to_string(s.heads) +
                                   " rows " + std::to_string(tokens) + " selected " + std::to_string(k),
                               s.kv_rank == 512 && dtype != DType::f32 ? 2 : 1);
          forget();
        }
      }
    }
  }
}

constexpr LatentShape kExpandedShapes[] = {
    {2, 192, 64, 256, 512}, {3, 128, 64, 128, 512}, {2, 24, 16, 8, 256}};

// By places in kExpandedShapes.
class GpuExpandedLatents : public GpuLatent, public testing::WithParamInterface<int> {};

INSTANTIATE_TEST_SUITE_P(, GpuExpandedLatents, testing::Range(0, 3));

// Sequences that the host knows; those with many rows are expanded, between others that are not.
TEST_P(GpuExpandedLatents, PromptsAgree) {
  const LatentShape s = kExpandedShapes[GetParam()];
  const std::vector<std::pair<int32_t, int32_t>> batches[] = {
      {{330, 0}}, {{1, 70}, {300, 20}, {3, 90}, {1, 16}, {260, 60}, {5, 0}}};
  int variant = 2 * GetParam();
  for (const auto& lengths : batches) {
    const DType dtype = std::array{DType::bf16, DType::f16, DType::f8e4m3}[variant % 3];
    PagedRows& p = paged(lengths, ++variant % 2 == 0 ? 5 : 16);
    p.device_batch.known = p.placed;
    const bool scaled = dtype == DType::f8e4m3;
    const int64_t tokens = p.host_batch.tokens, rows = s.heads * (s.nope_dim + s.v_dim);
    const Twin cache = cache_of(p, scaled ? DType::bf16 : dtype, s.entry_dim()),
               q = random({tokens, s.heads * s.query_dim()}), out = nans({tokens, s.heads * s.v_dim}),
               w = random({rows, s.kv_rank}, dtype, scaled ? 10.0f : 0.1f),
               scales = random({(rows + 127) / 128, s.kv_rank / 128}, DType::f32, 0.01f);
    WeightPart host_part{w.host, {}}, device_part{w.device, {}};
    if (scaled) host_part.scale = {scales.host, 128, 128}, device_part.scale = {scales.device, 128, 128};
    LatentAttention host{.out = out.host,
                         .q = q.host,
                         .kv_b = {{&host_part, 1}, rows, s.kv_rank},
                         .cache = cache.host,
                         .batch = &p.host_batch,
                         .shape = s,
                         .scale = 0.2f,
                         .precision = Precision::fast};
    LatentAttention device = host;
    device.out = out.device;
    device.q = q.device;
    device.kv_b.parts = {&device_part, 1};
    device.cache = cache.device;
    device.batch = &p.device_batch;
    ASSERT_STREQ(gpu_impls<LatentAttention>().front().name, "latent_attention.expanded_mma");
    if (const char* refusal = gpu_impls<LatentAttention>().front().refuse(*gpu_, device)) {
      EXPECT_NE(std::string_view(refusal), "the absorbed form is less work") << s.nope_dim;
    }
    expect_entries_agree(host, device, out, 2e-2, 2e-2,
                         std::string(dtype_name(dtype)) + " heads " + std::to_string(s.heads) + " rows " +
                             std::to_string(tokens));
    // Up to as many keys as could be selected, all are seen; beyond, the form does not apply.
    std::tie(host.selected, device.selected) = selection(p, 320);
    expect_entries_agree(host, device, out, 2e-2, 2e-2, "selected");
    forget();
  }
}

TEST_F(GpuLatent, PaddingRowsStoreNothingAndGiveZeros) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const LatentShape s{2, 4, 64, 8, 512};
    PagedRows& p = paged({{1, 20}, {1, 300}}, 16);
    pad_first(p);
    const Twin cache = cache_of(p, dtype, s.entry_dim()), q = random({2, s.heads * s.query_dim()}),
               kv = random({2, s.entry_dim()}), norm = random({s.kv_rank}), angles = random({2, 32}),
               out = nans({2, s.heads * s.v_dim}),
               w = random({s.heads * (s.nope_dim + s.v_dim), s.kv_rank}, dtype);
    const WeightPart part{w.device, {}};
    run(*gpu_, LatentStore{.q = q.device,
                           .kv = kv.device,
                           .norm = norm.device,
                           .cache = cache.device,
                           .batch = &p.device_batch,
                           .rope = {angles.device, angles.device},
                           .shape = s,
                           .norm_eps = 1e-6f});
    EXPECT_LE(differing(cache.host, bytes_of(cache.device)), s.entry_dim());  // one slot
    const LatentAttention op{.out = out.device,
                             .q = q.device,
                             .kv_b = {{&part, 1}, w.device.dim(0), s.kv_rank},
                             .cache = cache.device,
                             .batch = &p.device_batch,
                             .shape = s,
                             .scale = 0.1f};
    for (const Impl<LatentAttention>& impl : gpu_impls<LatentAttention>()) {
      if (impl.refuse(*gpu_, op) != nullptr) continue;
      reset(out);
      impl.run(*gpu_, op);
      const auto values = floats_of(out.device);
      for (int64_t i = 0; i < s.heads * s.v_dim; ++i) {
        ASSERT_EQ(values[i], 0) << impl.name;
        ASSERT_FALSE(std::isnan(values[s.heads * s.v_dim + i])) << impl.name;
      }
    }
  }
}

}  // namespace
}  // namespace atom::ops
