// Attention of prompts on a GPU, each entry against the CPU: several sequences and chunks behind a context,
// windows, sinks, blocks that copies fit and blocks that they do not. Slots that no row may see hold numbers
// that are not.
#include <algorithm>
#include <array>
#include <string_view>

#include "ops/gpu/device_paged.h"

namespace atom::ops {
namespace {

using Lengths = std::vector<std::pair<int32_t, int32_t>>;  // rows and context of each sequence

struct PromptCase {
  DType dtype = DType::bf16;
  int32_t heads = 8, kv_heads = 2, head_dim = 128, window = 0, block_size = 16;
  bool sinks = false;

  std::string name() const {
    return fmt::format("{} heads {}/{} of {} window {} block {}", dtype_name(dtype), heads, kv_heads,
                       head_dim, window, block_size);
  }
};

class GpuPrompt : public GpuPaged {
 protected:
  // A cache in which only what rows of the step see is a number.
  Twin cache(const PagedRows& p, const PromptCase& c) {
    const int64_t per_block = int64_t{c.kv_heads} * c.block_size * c.head_dim;
    std::vector<float> values(static_cast<size_t>(p.blocks * per_block), std::nanf(""));
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < p.host.size(); ++i) {
      const AttentionSequence& s = p.host[i];
      for (int32_t key = first_seen(s, c); key < s.context + s.rows; ++key) {
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
  static int32_t first_seen(const AttentionSequence& s, const PromptCase& c) {
    return c.window > 0 ? std::max(0, s.context - c.window + 1) : 0;
  }
  // Blocks that lie wholly before the window are gone, and so are their entries of the table.
  static constexpr int32_t kNoEntry = 1 << 24;  // far beyond every cache
  static void drop_blocks(PagedRows& p, const PromptCase& c) {
    for (size_t i = 0; i < p.host.size(); ++i) {
      const auto gone = static_cast<size_t>(first_seen(p.host[i], c) / c.block_size);
      std::fill_n(p.tables[i].begin(), std::min(gone, p.tables[i].size()), kNoEntry);
    }
  }

  // `widened`: the entry that widens E4M3 must take it.
  void expect_agrees(const PromptCase& c, const Lengths& lengths, bool widened = false) {
    PagedRows& p = paged(lengths, c.block_size);
    const int64_t tokens = p.host_batch.tokens;
    const Twin k = cache(p, c), v = cache(p, c),
               q = random({tokens, (c.heads + 2 * c.kv_heads) * c.head_dim}),
               out = nans({tokens, c.heads * c.head_dim}), sinks = random({c.heads});
    drop_blocks(p, c);
    for (size_t i = 0; i < p.placed.size(); ++i) p.placed[i].block_table = upload_span(p.tables[i]).data();
    p.device_batch.sequences = upload_span(p.placed);
    p.device_batch.known = p.placed;
    auto op_of = [&](Tensor Twin::*side, const AttentionBatch& batch) {
      PagedAttention op{.out = out.*side, .q = q.*side, .k_cache = k.*side, .v_cache = v.*side};
      if (c.sinks) op.sinks = sinks.*side;
      op.batch = &batch;
      op.heads = c.heads, op.kv_heads = c.kv_heads, op.head_dim = c.head_dim, op.window = c.window;
      op.scale = 0.9f / std::sqrt(static_cast<float>(c.head_dim));
      return op;
    };
    const PagedAttention device = op_of(&Twin::device, p.device_batch);
    expect_entries_agree(op_of(&Twin::host, p.host_batch), device, out, 5e-6, 1e-2, c.name(), 2);
    if (gpu_->queue().capability() == 90) {
      const bool fits = c.dtype != DType::f8e4m3 && c.block_size % 8 == 0;
      const auto entries = gpu_impls<PagedAttention>();
      for (const auto& [name, taken] :
           {std::pair{"attention.hopper_mma", fits}, {"attention.widened_mma", widened}}) {
        const auto entry = std::ranges::find_if(
            entries, [&](const auto& e) { return std::string_view(e.name) == std::string_view(name); });
        ASSERT_NE(entry, entries.end());
        EXPECT_EQ(entry->refuse(*gpu_, device) == nullptr, taken) << name << " " << c.name();
      }
    }
    forget();
  }
};

TEST_F(GpuPrompt, ChunksOfSeveralSequencesAgree) {
  const Lengths batches[] = {{{65, 0}},
                             {{129, 0}, {1, 300}, {2, 63}},
                             {{31, 500}, {7, 121}, {0, 0}, {64, 64}},
                             {{140, 17}, {3, 0}},
                             {{3, 3000}}};
  constexpr std::pair<int32_t, int32_t> kHeads[] = {{2, 2}, {10, 2}, {4, 1}, {16, 2}, {24, 1}};
  constexpr int32_t kWindows[] = {0, 128, 0, 1, 0, 100, 33}, kBlocks[] = {16, 5, 32, 8, 24, 256};
  int variant = 0;
  for (const DType dtype : {DType::bf16, DType::f16, DType::bf16, DType::f8e4m3}) {
    for (const int32_t dim : {64, 128, 256}) {
      for (const Lengths& lengths : batches) {
        ++variant;
        const auto [heads, kv_heads] = kHeads[variant * 3 / 7 % 5];
        expect_agrees({.dtype = dtype,
                       .heads = heads,
                       .kv_heads = kv_heads,
                       .head_dim = dim,
                       .window = kWindows[variant % 7],
                       .block_size = kBlocks[variant % 6],
                       .sinks = variant % 3 == 0},
                      lengths);
      }
    }
  }
}

TEST_F(GpuPrompt, WidenedCachesAgree) {
  const Lengths lengths = {{300, 0}, {1, 100}, {64, 150}, {0, 0}, {2, 17}, {130, 64}};
  for (const int32_t dim : {64, 128, 256}) {
    for (const int32_t window : {0, 60}) {
      expect_agrees({.dtype = DType::f8e4m3,
                     .head_dim = dim,
                     .window = window,
                     .block_size = window == 0 ? 16 : 32,
                     .sinks = window > 0},
                    lengths, true);
    }
  }
  Lengths many;  // more than a warp looks at at a time
  for (int32_t i = 0; i < 100; ++i) many.emplace_back(9 + i % 7, i % 2);
  expect_agrees({.dtype = DType::f8e4m3}, many, true);
  expect_agrees({.dtype = DType::f8e4m3}, {{300, 400}});  // sees too many keys for its rows
}

// More tiles than processors: blocks take several.
TEST_F(GpuPrompt, ManyTilesAgree) {
  Lengths many;
  for (int32_t i = 0; i < 150; ++i) many.emplace_back(1 + i * 37 % 20, i * 53 % 111);
  for (const int32_t dim : {64, 128, 256}) {
    expect_agrees({.heads = 4, .kv_heads = 2, .head_dim = dim, .block_size = 32}, many);
    expect_agrees({.heads = 32, .kv_heads = 1, .head_dim = dim, .window = 30, .sinks = true}, {{600, 100}});
  }
}

}  // namespace
}  // namespace atom::ops
