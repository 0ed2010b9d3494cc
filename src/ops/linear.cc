#include "ops/linear.h"

#include <algorithm>

#include "ops/cpu/cpu_features.h"
#include "ops/cpu/linear_ref.h"
#include "ops/cpu/linear_rows.h"

namespace atom::ops {
namespace {

void check_product(const Tensor& out, int64_t out_cols, const Tensor& x, const Weight& w,
                   const Tensor& bias) {
  CHECK(x.rank == 2 && x.dtype == DType::f32 && x.dim(1) == w.cols, "x {} for {} columns", x.to_string(),
        w.cols);
  CHECK(out.rank == 2 && out.dtype == DType::f32 && out.dim(0) == x.dim(0) && out.dim(1) == out_cols,
        "out {} for x {} and {} rows", out.to_string(), x.to_string(), out_cols);
  CHECK(x.strides[1] == 1 && out.strides[1] == 1, "rows must be contiguous");
  CHECK(x.device == out.device, "x and out on different devices");
  int64_t rows = 0;
  for (const WeightPart& part : w.parts) {
    const Tensor& data = part.data;
    check_part(part, w.cols);
    CHECK(data.device == x.device, "weight and x on different devices");
    rows += data.dim(0);
  }
  CHECK(rows == w.rows, "parts have {} rows of {}", rows, w.rows);
  CHECK(!bias || (bias.rank == 1 && bias.dtype == DType::f32 && bias.dim(0) == w.rows && bias.contiguous() &&
                  bias.device == x.device),
        "bias {} for {} rows", bias.to_string(), w.rows);
}

#if defined(__x86_64__)

struct Request {
  const Weight& w;
  int64_t tokens;
  Precision precision;
};

bool all_parts(const Weight& w, bool (*is)(DType)) {
  for (const WeightPart& part : w.parts) {
    if (!is(part.data.dtype)) return false;
  }
  return true;
}

// Below this many tokens the dot products of one weight row at a time are faster than tiles.
constexpr int64_t kInt8TileTokens = 12;
// The same for weights whose scales change within a step of tiles, so that they are widened first.
constexpr int64_t kWidenedTileTokens = 4;
constexpr int64_t kTileColumns = 32;

const char* refuse_avx2(const Request&) { return cpu_features().avx2 ? nullptr : "needs AVX2"; }
const char* refuse_avx512(const Request&) { return cpu_features().avx512 ? nullptr : "needs AVX-512"; }

const char* refuse_blocks(const Request& r) {
  if (r.precision != Precision::fast) return "rounds activations";
  return all_parts(r.w, is_block_type) ? nullptr : "for block types only";
}
const char* refuse_int8_avx2(const Request& r) {
  return cpu_features().avx2 ? refuse_blocks(r) : "needs AVX2";
}
const char* refuse_int8_avx512(const Request& r) {
  return cpu_features().avx512 ? refuse_blocks(r) : "needs AVX-512";
}
const char* refuse_int8_amx(const Request& r) {
  if (!cpu_features().amx_int8) return "needs AMX";
  return r.tokens < kInt8TileTokens ? "too few rows" : refuse_blocks(r);
}
const char* refuse_bf16_amx(const Request& r) {
  if (!cpu_features().amx_bf16) return "needs AMX";
  if (r.precision != Precision::fast) return "rounds activations";
  if (all_parts(r.w, [](DType type) { return type == DType::bf16; })) return nullptr;
  if (!all_parts(r.w, [](DType type) { return type == DType::bf16 || is_scaled_type(type); }))
    return "for bf16 and scaled weights only";
  const bool on_steps = std::all_of(r.w.parts.begin(), r.w.parts.end(), [](const WeightPart& part) {
    return !part.scale || part.scale.steady_over(kTileColumns, part.data.dim(1));
  });
  return on_steps || r.tokens >= kWidenedTileTokens ? nullptr : "too few rows";
}

template <class Op, const RowKernel& kernel, const char* (*refuse)(const Request&)>
constexpr Impl<Op> entry(const char* name) {
  return {name,
          [](const Stream&, const Op& op) {
            return refuse({op.w, op.x.dim(0), op.precision});
          },
          [](Stream& stream, const Op& op) { run_rows(stream, kernel, op); }};
}

#endif

#if defined(__x86_64__)

template <class Op, const RowKernel& kernel, const char* (*refuse)(const Request&)>
constexpr Impl<Group<Op>> group_entry(const char* name) {
  return {name,
          [](const Stream&, const Group<Op>& group) -> const char* {
            int64_t tokens = 0;
            for (const Op& op : group.ops) tokens += op.x.dim(0);
            const int64_t average = tokens / std::max<int64_t>(1, static_cast<int64_t>(group.ops.size()));
            for (const Op& op : group.ops) {
              if (const char* reason = refuse({op.w, average, op.precision})) return reason;
            }
            return nullptr;
          },
          [](Stream& stream, const Group<Op>& group) { run_rows(stream, kernel, group.ops); }};
}

#endif

template <class Op>
void run_each(Stream& stream, const Group<Op>& group) {
  for (const Op& op : group.ops) run(stream, op);
}

constexpr Impl<Linear> kLinear[] = {
#if defined(__x86_64__)
    entry<Linear, kRowsBf16Amx, refuse_bf16_amx>("linear.amx_bf16"),
    entry<Linear, kRowsInt8Amx, refuse_int8_amx>("linear.amx_int8"),
    entry<Linear, kRowsInt8Avx512, refuse_int8_avx512>("linear.avx512_int8"),
    entry<Linear, kRowsAvx512, refuse_avx512>("linear.avx512"),
    entry<Linear, kRowsInt8Avx2, refuse_int8_avx2>("linear.avx2_int8"),
    entry<Linear, kRowsAvx2, refuse_avx2>("linear.avx2"),
#endif
    {"linear.ref", accept_all<Linear>, linear_ref},
};

constexpr Impl<GatedUp> kGatedUp[] = {
#if defined(__x86_64__)
    entry<GatedUp, kRowsBf16Amx, refuse_bf16_amx>("gated_up.amx_bf16"),
    entry<GatedUp, kRowsInt8Amx, refuse_int8_amx>("gated_up.amx_int8"),
    entry<GatedUp, kRowsInt8Avx512, refuse_int8_avx512>("gated_up.avx512_int8"),
    entry<GatedUp, kRowsAvx512, refuse_avx512>("gated_up.avx512"),
    entry<GatedUp, kRowsInt8Avx2, refuse_int8_avx2>("gated_up.avx2_int8"),
    entry<GatedUp, kRowsAvx2, refuse_avx2>("gated_up.avx2"),
#endif
    {"gated_up.composed", accept_all<GatedUp>, gated_up_composed},
};

template <class Op>
constexpr Impl<Group<Op>> kGroup[] = {
#if defined(__x86_64__)
    group_entry<Op, kRowsBf16Amx, refuse_bf16_amx>("group.amx_bf16"),
    group_entry<Op, kRowsInt8Amx, refuse_int8_amx>("group.amx_int8"),
    group_entry<Op, kRowsInt8Avx512, refuse_int8_avx512>("group.avx512_int8"),
    group_entry<Op, kRowsAvx512, refuse_avx512>("group.avx512"),
    group_entry<Op, kRowsInt8Avx2, refuse_int8_avx2>("group.avx2_int8"),
    group_entry<Op, kRowsAvx2, refuse_avx2>("group.avx2"),
#endif
    {"group.each", accept_all<Group<Op>>, run_each<Op>},
};

}  // namespace

void check(const Linear& op) { check_product(op.out, op.w.rows, op.x, op.w, op.bias); }

void check(const GatedUp& op) {
  CHECK(op.w.rows % 2 == 0, "{} gate and up rows", op.w.rows);
  check_product(op.out, op.w.rows / 2, op.x, op.w, op.bias);
}

template <>
std::span<const Impl<Linear>> impls<Linear>() {
  return kLinear;
}

template <>
std::span<const Impl<GatedUp>> impls<GatedUp>() {
  return kGatedUp;
}

template <>
std::span<const Impl<Group<Linear>>> impls<Group<Linear>>() {
  return kGroup<Linear>;
}

template <>
std::span<const Impl<Group<GatedUp>>> impls<Group<GatedUp>>() {
  return kGroup<GatedUp>;
}

}  // namespace atom::ops
