// The ops of gated delta nets on a GPU, each entry against the CPU reference.
#include "ops/gated_delta.h"
#include "ops/gpu/device_test.h"

namespace atom::ops {
namespace {

class GpuDelta : public GpuOps {};

const std::vector<RecurrentSequence> kSteps[] = {{{0, 1, 2}},
                                                 {{0, 7, 1}},
                                                 {{0, 1, 2}, {1, 1, 0}, {2, 1, 3}},
                                                 {{0, 1, 2}, {1, 90, 0}, {91, 2, 1}},
                                                 {{0, 3, 1, 3}, {3, 5, 0, 2}, {8, 4, 2}}};

int64_t rows_of(const std::vector<RecurrentSequence>& sequences) {
  return sequences.back().first_row + sequences.back().rows;
}

TEST_F(GpuDelta, ConvolutionsAgree) {
  for (const auto& sequences : kSteps) {
    for (const auto& [channels, kernel] : {std::pair<int64_t, int32_t>{5, 4}, {300, 4}, {520, 2}, {64, 16}}) {
      const int64_t tokens = rows_of(sequences);
      const Twin x = random({tokens, channels + 3}), weight = random({channels * kernel}),
                 state = random({4, (kernel - 1) * channels}), out = nans({tokens, channels});
      const auto placed = upload_span(sequences);
      run(cpu_, CausalConv{out.host, x.host, weight.host, state.host, sequences, kernel});
      run(*gpu_, CausalConv{out.device, x.device, weight.device, state.device, placed, kernel});
      EXPECT_LT(error_of(out), 1e-6) << channels << " channels, " << tokens << " rows";
      EXPECT_EQ(error_of(state), 0) << channels << " channels, " << tokens << " rows";
    }
  }
}

TEST_F(GpuDelta, RulesAgree) {
  struct Heads {
    int32_t k_heads, v_heads, k_dim, v_dim;
  };
  for (const auto& sequences : kSteps) {
    for (const Heads h :
         {Heads{1, 1, 4, 4}, {2, 4, 16, 20}, {1, 3, 33, 40}, {2, 4, 128, 128}, {1, 2, 200, 96}}) {
      const int64_t tokens = rows_of(sequences), values = int64_t{h.v_heads} * h.v_dim,
                    width = 2 * int64_t{h.k_heads} * h.k_dim + values;
      const Twin qkv = random({tokens, width + 1}), a = random({tokens, h.v_heads + 2}),
                 b = random({tokens, h.v_heads}), a_log = random({h.v_heads}), dt_bias = random({h.v_heads}),
                 state = random({4, values * h.k_dim}, DType::f32, 0.3f), out = nans({tokens, values});
      const auto placed = upload_span(sequences);
      DeltaRule host{out.host,   qkv.host,  a.host,    b.host,    a_log.host, dt_bias.host,
                     state.host, sequences, h.k_heads, h.v_heads, h.k_dim,    h.v_dim};
      DeltaRule device{out.device,   qkv.device, a.device,  b.device,  a_log.device, dt_bias.device,
                       state.device, placed,     h.k_heads, h.v_heads, h.k_dim,      h.v_dim};
      impls<DeltaRule>().back().run(cpu_, host);
      run(*gpu_, device);
      EXPECT_LT(error_of(out), 5e-6) << h.k_dim << "x" << h.v_dim << " rows " << tokens;
      EXPECT_LT(error_of(state), 5e-6) << h.k_dim << "x" << h.v_dim << " rows " << tokens;
    }
  }
}

// What takes chunks among what does not: too few rows, rows that may be taken back, padding.
struct LongRule {
  int32_t k_heads, v_heads, v_dim;
  std::vector<RecurrentSequence> sequences;
  float size = 1;   // of values and states
  float alike = 0;  // what all keys and queries have in common
};

TEST_F(GpuDelta, LongRulesAgreeInChunks) {
  const std::vector<RecurrentSequence> mixed = {{0, 64, 1},    {64, 3, 0},   {67, 129, 2}, {196, 70, 4, 5},
                                                {266, 90, -1}, {356, 65, 3}, {421, 1, 5}};
  for (const LongRule& r : {LongRule{1, 1, 32, {{0, 64, 0}}},
                            {2, 4, 128, {{0, 500, 1}}},
                            {1, 3, 64, mixed},
                            {2, 2, 128, mixed, 1, 1},
                            {1, 4, 128, mixed, 3e4f},
                            {5, 10, 128, mixed},
                            {1, 2, 96, mixed, 1e-6f},
                            {1, 2, 128, {{0, 3000, 2}}, 1, 1}}) {
    const int64_t tokens = rows_of(r.sequences), values = int64_t{r.v_heads} * r.v_dim,
                  keys = 2 * int64_t{r.k_heads} * 128, width = keys + values + 4;
    auto rows = normals(tokens * width);
    for (int64_t i = 0; i < tokens * width; ++i) {
      float& x = rows[static_cast<size_t>(i)];
      x = i % width < keys ? x + r.alike : x * r.size;
    }
    // Gates as models have them: from long memory to hardly any.
    const Twin qkv = twin(rows, DType::f32, {tokens, width}), a = random({tokens, r.v_heads + 2}),
               b = random({tokens, r.v_heads}), a_log = random({r.v_heads}, DType::f32, 3),
               dt_bias = random({r.v_heads}), state = random({6, values * 128}, DType::f32, 0.3f * r.size),
               out = nans({tokens, values});
    const auto placed = upload_span(r.sequences);
    // The reference has no padding.
    std::vector<RecurrentSequence> real = r.sequences;
    for (RecurrentSequence& s : real) {
      if (s.slot < 0) s = {s.first_row, s.rows, 5, s.rows};
    }
    DeltaRule host{out.host,   qkv.host, a.host,    b.host,    a_log.host, dt_bias.host,
                   state.host, real,     r.k_heads, r.v_heads, 128,        r.v_dim};
    DeltaRule device{out.device,   qkv.device, a.device,  b.device,  a_log.device, dt_bias.device,
                     state.device, placed,     r.k_heads, r.v_heads, 128,          r.v_dim};
    ASSERT_STREQ(gpu_impls<DeltaRule>().front().name, "delta_rule.chunked_mma");
    EXPECT_NE(gpu_impls<DeltaRule>().front().refuse(*gpu_, device), nullptr);  // exact
    device.precision = Precision::fast;
    if (gpu_impls<DeltaRule>().front().refuse(*gpu_, device) != nullptr) GTEST_SKIP() << "older GPU";
    impls<DeltaRule>().back().run(cpu_, host);
    for (const RecurrentSequence& s : r.sequences) {
      if (s.slot < 0)
        std::memset(out.host.row<float>(s.first_row), 0, static_cast<size_t>(s.rows * values) * 4);
    }
    run(*gpu_, device);
    const std::string what = fmt::format("heads {}/{} of {} rows {} size {} alike {}", r.k_heads, r.v_heads,
                                         r.v_dim, tokens, r.size, r.alike);
    EXPECT_LT(error_of(out), 2e-3) << what;
    EXPECT_LT(error_of(state), 2e-3) << what;
  }
}

TEST_F(GpuDelta, PaddingRowsKeepNothingAndGiveZeros) {
  const std::vector<RecurrentSequence> sequences = {{0, 1, -1}, {1, 1, 0}};
  const auto placed = upload_span(sequences);
  const Twin x = random({2, 64}), weight = random({64 * 4}), conv = random({1, 3 * 64}), qkv = nans({2, 64}),
             a = random({2, 1}), one = random({1}), state = random({1, 16 * 32}), out = nans({2, 32});
  run(*gpu_, CausalConv{qkv.device, x.device, weight.device, conv.device, placed, 4});
  run(*gpu_, DeltaRule{out.device, qkv.device, a.device, a.device, one.device, one.device, state.device,
                       placed, 1, 1, 16, 32});
  const auto convolved = floats_of(qkv.device), values = floats_of(out.device);
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(convolved[i], 0);
    EXPECT_FALSE(std::isnan(convolved[64 + i]));
  }
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(values[i], 0);
    EXPECT_FALSE(std::isnan(values[32 + i]));
  }
}

struct NetShape {
  int32_t k_heads, v_heads, k_dim, v_dim, kernel;
  bool fused = true;  // if every sequence has one row
};

TEST_F(GpuDelta, NetsAgree) {
  const std::vector<RecurrentSequence> steps[] = {
      {{0, 1, 2}}, {{0, 1, 2}, {1, 1, 0}, {2, 1, 3, 1}}, {{0, 1, 2}, {1, 9, 0}, {10, 2, 1}}};
  for (const auto& sequences : steps) {
    for (const NetShape& n : {NetShape{1, 1, 4, 4, 4},
                              {2, 4, 16, 20, 3},
                              {1, 3, 33, 40, 2},
                              {2, 4, 128, 128, 4},
                              {4, 4, 96, 64, 4},
                              {1, 2, 200, 96, 4, false},
                              {1, 2, 32, 30, 4, false}}) {
      const int64_t tokens = rows_of(sequences), values = int64_t{n.v_heads} * n.v_dim,
                    channels = 2 * int64_t{n.k_heads} * n.k_dim + values;
      const Twin in = random({tokens, channels + values + 2 * n.v_heads + 1}), qkv = nans({tokens, channels}),
                 weight = random({channels * n.kernel}), conv = random({4, (n.kernel - 1) * channels}),
                 a_log = random({n.v_heads}), dt_bias = random({n.v_heads}), norm = random({n.v_dim}),
                 state = random({4, values * n.k_dim}, DType::f32, 0.3f), out = nans({tokens, values});
      const auto placed = upload_span(sequences);
      const auto conv_before = bytes_of(conv.device), state_before = bytes_of(state.device);
      auto op_of = [&](Tensor Twin::*side, std::span<const RecurrentSequence> of) {
        const Tensor rows = in.*side;
        return GatedDelta{.conv = {qkv.*side, rows, weight.*side, conv.*side, of, n.kernel},
                          .rule = {out.*side, qkv.*side, rows.cols(channels + values + n.v_heads, n.v_heads),
                                   rows.cols(channels + values, n.v_heads), a_log.*side, dt_bias.*side,
                                   state.*side, of, n.k_heads, n.v_heads, n.k_dim, n.v_dim},
                          .norm = {out.*side, rows.cols(channels, values), norm.*side, 1e-6f}};
      };
      const GatedDelta host = op_of(&Twin::host, sequences), device = op_of(&Twin::device, placed);
      impls<CausalConv>().back().run(cpu_, host.conv);
      impls<DeltaRule>().back().run(cpu_, host.rule);
      run(cpu_, host.norm);
      check(device);
      std::vector<std::string> took;
      for (const Impl<GatedDelta>& impl : gpu_impls<GatedDelta>()) {
        if (impl.refuse(*gpu_, device) != nullptr) continue;
        took.emplace_back(impl.name);
        const std::string what = fmt::format("{} heads {}/{} of {}x{} rows {}", impl.name, n.k_heads,
                                             n.v_heads, n.k_dim, n.v_dim, tokens);
        const std::vector<float> poison(static_cast<size_t>(out.device.elements()), std::nanf(""));
        queue_->copy_to_device(out.device.data, poison.data(), out.device.bytes());
        queue_->copy_to_device(conv.device.data, conv_before.data(), conv.device.bytes());
        queue_->copy_to_device(state.device.data, state_before.data(), state.device.bytes());
        queue_->wait();
        impl.run(*gpu_, device);
        EXPECT_LT(error_of(out), 1e-5) << what;
        EXPECT_LT(error_of(state), 5e-6) << what;
        EXPECT_EQ(error_of(conv), 0) << what;
      }
      const bool decodes = tokens == static_cast<int64_t>(sequences.size());
      EXPECT_EQ(took.front() == "gated_delta.decode", decodes && n.fused) << n.k_dim << "x" << n.v_dim;
    }
  }
}

TEST_F(GpuDelta, PaddingRowsOfNetsKeepNothingAndGiveZeros) {
  const std::vector<RecurrentSequence> sequences = {{0, 1, -1}, {1, 1, 0}};
  const auto placed = upload_span(sequences);
  const Twin in = random({2, 64 + 32 + 2}), qkv = nans({2, 64}), weight = random({64 * 4}),
             conv = random({1, 3 * 64}), one = random({1}), norm = random({32}), state = random({1, 16 * 32}),
             out = nans({2, 32});
  const Tensor rows = in.device;
  const GatedDelta op{.conv = {qkv.device, rows, weight.device, conv.device, placed, 4},
                      .rule = {out.device, qkv.device, rows.cols(97, 1), rows.cols(96, 1), one.device,
                               one.device, state.device, placed, 1, 1, 16, 32},
                      .norm = {out.device, rows.cols(64, 32), norm.device, 1e-6f}};
  ASSERT_EQ(gpu_impls<GatedDelta>().front().refuse(*gpu_, op), nullptr);
  run(*gpu_, op);
  const auto values = floats_of(out.device);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(values[i], 0);
    EXPECT_FALSE(std::isnan(values[32 + i]));
  }
}

TEST_F(GpuDelta, GatesAgree) {
  for (const auto& [rows, heads, dim] :
       {std::tuple<int64_t, int64_t, int64_t>{1, 1, 3}, {5, 7, 40}, {70, 32, 128}}) {
    const Twin gate = random({rows, heads * dim + 4}), weight = random({dim}),
               x = random({rows, heads * dim}), y = random({rows, heads * dim});
    run(cpu_, GatedRmsNorm{x.host, gate.host.cols(0, heads * dim), weight.host, 1e-6f});
    run(*gpu_, GatedRmsNorm{x.device, gate.device.cols(0, heads * dim), weight.device, 1e-6f});
    EXPECT_LT(error_of(x), 1e-6) << dim;
    run(cpu_, SigmoidGate{y.host, gate.host.cols(4, heads * dim)});
    run(*gpu_, SigmoidGate{y.device, gate.device.cols(4, heads * dim)});
    EXPECT_LT(error_of(y), 1e-6) << dim;
  }
}

}  // namespace
}  // namespace atom::ops
