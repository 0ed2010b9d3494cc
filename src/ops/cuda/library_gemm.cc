// Products of many rows through cuBLASLt. The library is looked for at first use, so that a machine without
// it still runs, on the entries behind this one. Activations are rounded to the weight's type in scratch;
// sums are float32, but those of the gate and up halves of many rows are rounded to bf16 when they are
// stored.
#include <cublasLt.h>
#include <dlfcn.h>

#include <map>
#include <tuple>

#include "base/log.h"
#include "ops/gpu/decode_kernels.h"
#include "ops/gpu/deferred.h"
#include "ops/gpu/kernels.h"
#include "tensor/gpu/vendor.h"

namespace atom::ops::gpu_kernels {
namespace {

constexpr int64_t kWorkspaceBytes = kLibraryWorkspaceBytes;

#define BLAS_CHECK(call)                                                                \
  do {                                                                                  \
    if (const cublasStatus_t status = (call); status != CUBLAS_STATUS_SUCCESS)          \
      throw failed("cuBLASLt failed: status {} ({})", static_cast<int>(status), #call); \
  } while (0)

// The functions of the library that are used here.
struct Library {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&cublasLtMatmul) matmul;
};

template <class F>
bool resolve(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(::dlsym(library, name));
  return function != nullptr;
}

// Null if the machine has none.
const Library* library() {
  static const Library* found = []() -> const Library* {
    static Library l;
    const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
    void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      log_info("{} is not on this machine; products of many rows use atom's own kernels", name);
      return nullptr;
    }
    const bool complete = resolve(handle, "cublasLtCreate", l.create) &&
                          resolve(handle, "cublasLtMatmulDescCreate", l.desc_create) &&
                          resolve(handle, "cublasLtMatmulDescSetAttribute", l.desc_set) &&
                          resolve(handle, "cublasLtMatrixLayoutCreate", l.layout_create) &&
                          resolve(handle, "cublasLtMatrixLayoutSetAttribute", l.layout_set) &&
                          resolve(handle, "cublasLtMatmulPreferenceCreate", l.preference_create) &&
                          resolve(handle, "cublasLtMatmulPreferenceSetAttribute", l.preference_set) &&
                          resolve(handle, "cublasLtMatmulPreferenceDestroy", l.preference_destroy) &&
                          resolve(handle, "cublasLtMatmulAlgoGetHeuristic", l.heuristic) &&
                          resolve(handle, "cublasLtMatmul", l.matmul);
    return complete ? &l : nullptr;
  }();
  return found;
}

// A product of one shape, ready to be started. Descriptors live as long as the process.
struct Plan {
  cublasLtMatmulDesc_t desc;
  cublasLtMatrixLayout_t w, x, out;
  cublasLtMatmulAlgo_t algo;
  bool usable;
};

// type, type of out, rows, cols, tokens, w stride, out stride, bias, parts: that the columns are cut into,
// with a result of each, one behind the other
using PlanKey = std::tuple<DType, DType, int64_t, int64_t, int64_t, int64_t, int64_t, bool, int32_t>;

// The library handle and plans of one device, for one rank: a plan's bias is set before each use.
class Products {
 public:
  static Products& of(gpu::Queue& queue) {
    thread_local std::map<int, Products> all;
    Products& products = all[queue.device().index];
    products.queue_ = &queue;
    return products;
  }

  const Plan& plan(const PlanKey& key) {
    const auto found = plans_.find(key);
    if (found != plans_.end()) return found->second;
    // As for a kernel that is new to the queue: the library loads what a shape needs.
    if (gpu::waiting_kernels() != gpu::Waiting::nowhere) queue_->settle();
    return plans_.emplace(key, make(key)).first->second;
  }
  cublasLtHandle_t handle() {
    if (handle_ == nullptr) BLAS_CHECK(library()->create(&handle_));
    return handle_;
  }

 private:
  // In the library's column-major terms: out [rows, tokens] = Wᵀ x, with W [cols, rows] and x [cols, tokens].
  Plan make(const PlanKey& key) {
    const auto [dtype, out_dtype, rows, cols, tokens, w_stride, out_stride, bias, parts] = key;
    const Library& l = *library();
    auto type_of = [](DType t) {
      return t == DType::f32 ? CUDA_R_32F : t == DType::bf16 ? CUDA_R_16BF : CUDA_R_16F;
    };
    const cudaDataType_t type = type_of(dtype);
    Plan p{};
    BLAS_CHECK(l.desc_create(&p.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transpose = CUBLAS_OP_T;
    BLAS_CHECK(l.desc_set(p.desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose));
    if (bias) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      const cudaDataType_t f32 = CUDA_R_32F;
      BLAS_CHECK(l.desc_set(p.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
      BLAS_CHECK(l.desc_set(p.desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &f32, sizeof f32));
    }
    const int64_t part = cols / parts;
    BLAS_CHECK(l.layout_create(&p.w, type, part, rows, w_stride));
    BLAS_CHECK(l.layout_create(&p.x, type, part, tokens, cols));
    BLAS_CHECK(l.layout_create(&p.out, type_of(out_dtype), rows, tokens, out_stride));
    for (const auto& [layout, step] : {std::pair{p.w, part}, {p.x, part}, {p.out, tokens * out_stride}}) {
      BLAS_CHECK(l.layout_set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &parts, sizeof parts));
      BLAS_CHECK(l.layout_set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step));
    }
    cublasLtMatmulPreference_t preference;
    BLAS_CHECK(l.preference_create(&preference));
    BLAS_CHECK(l.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspaceBytes,
                                sizeof kWorkspaceBytes));
    cublasLtMatmulHeuristicResult_t result;
    int count = 0;
    const cublasStatus_t status =
        l.heuristic(handle(), p.desc, p.w, p.x, p.out, p.out, preference, 1, &result, &count);
    (void)l.preference_destroy(preference);
    p.usable = status == CUBLAS_STATUS_SUCCESS && count == 1;
    p.algo = result.algo;
    return p;
  }

  gpu::Queue* queue_ = nullptr;  // that the next product is given to
  std::map<PlanKey, Plan> plans_;
  cublasLtHandle_t handle_ = nullptr;
};

const char* refuse_weight(const Weight& w) {
  for (const WeightPart& part : w.parts) {
    const Tensor& data = part.data;
    if (data.dtype != DType::bf16 && data.dtype != DType::f16) return "for bf16 and f16 weights only";
    if (data.dtype != w.parts[0].data.dtype) return "the parts have different types";
    if (w.cols % 8 != 0 || data.strides[0] % 8 != 0 || reinterpret_cast<uintptr_t>(data.data) % 16 != 0) {
      return "rows of the weight are not aligned";
    }
  }
  return refuse_library();
}

const char* refuse(const Weight& w, Precision precision) {
  return precision != Precision::fast ? "rounds activations" : refuse_weight(w);
}

PlanKey key_of(const Tensor& w, const Tensor& x, const Tensor& out, bool bias, int32_t parts = 1) {
  return {w.dtype, out.dtype, w.dim(0), w.dim(1), x.dim(0), w.strides[0], out.strides[0], bias, parts};
}
PlanKey key_of(const Weight& w, size_t part, const Tensor& x, const Tensor& out, const Tensor& bias) {
  return key_of(w.parts[part].data, x, out, bool(bias));
}

// out = x wᵀ, or out += that.
void multiply(gpu::Queue& queue, const Plan& plan, const Tensor& w, const void* x, const Tensor& out,
              void* workspace, bool adds = false) {
  const float one = 1, beta = adds ? 1 : 0;
  BLAS_CHECK(library()->matmul(Products::of(queue).handle(), plan.desc, &one, w.data, plan.w, x, plan.x,
                               &beta, out.data, plan.out, out.data, plan.out, &plan.algo, workspace,
                               kWorkspaceBytes, gpu::native_stream(queue)));
}

// The library's product of one matrix, which waits for what reads its result.
struct DeferredLibraryProduct : DeferredShare {
  DeferredLibraryProduct(const Tensor& o, const Tensor& matrix, const RoundedRows& r)
      : DeferredShare(o), w(matrix), rows(r) {}
  // How many bytes may be needed for parts, of so many rows.
  static int64_t parts_bytes(int64_t tokens, int64_t n) {
    return tokens <= kMostInParts ? aligned(kParts * tokens * n * static_cast<int64_t>(sizeof(float))) : 0;
  }
  void start(gpu::Queue& queue) override { start_into(queue, out, false); }
  Rest start_adding(gpu::Queue& queue, const Tensor& residual) override {
    const int64_t tokens = out.dim(0), n = out.dim(1);
    // A product that reads the sum takes less longer than the norm that need not.
    if (tokens >= kFewestThatAdd && start_into(queue, residual, true)) return {};
    // Tiles of 128 x 128 would be half a round of blocks or less.
    const int64_t tiles = (tokens + 127) / 128 * ((n + 127) / 128);
    const bool short_round = kParts * tiles <= queue.processors();
    if (tokens > kMostInParts / kParts && tokens <= kMostInParts && short_round &&
        w.dim(1) >= kFewestColumns && w.dim(1) % (8 * kParts) == 0) {
      const Tensor parts = make_tensor(rows.behind, DType::f32, {kParts * tokens, n}, out.device);
      const int64_t end = rows.scratch_bytes + parts_bytes(tokens, n);
      if (queue.planning()) return {parts, end};
      const Plan& plan = Products::of(queue).plan(key_of(w, rows.x, parts, false, kParts));
      if (plan.usable) {
        multiply(queue, plan, w, rows.x.data, parts, workspace());
        return {parts, end};
      }
    }
    start(queue);
    return {out};
  }

  Tensor w;
  RoundedRows rows;

 private:
  static constexpr int32_t kParts = 2;
  static constexpr int64_t kMostInParts = 256, kFewestColumns = 8192, kFewestThatAdd = 1024;

  std::byte* workspace() const { return rows.behind + parts_bytes(out.dim(0), out.dim(1)); }
  bool start_into(gpu::Queue& queue, const Tensor& to, bool adds) {
    if (queue.planning()) return true;
    const Plan& plan = Products::of(queue).plan(key_of(w, rows.x, to, false));
    if (plan.usable) multiply(queue, plan, w, rows.x.data, to, workspace(), adds);
    return plan.usable;
  }
};

// Calls fn(piece, its first row of all) for what is multiplied at once: parts, or two pieces of one that the
// library's tiles of 256 x 128 would cover in more than one round of blocks but much less than two. The
// second piece takes less than a round with the smaller tiles that the library has for it.
template <class Fn>
void for_pieces(const gpu::Queue& queue, const Linear& op, const Fn& fn) {
  const int64_t tokens = op.x.dim(0), round = queue.processors() / 2 * 256;
  int64_t row = 0;
  for (const WeightPart& part : op.w.parts) {
    const int64_t rows = part.data.dim(0);
    const bool cut = tokens > 128 && tokens <= 256 && 10 * rows > 11 * round && 10 * rows < 18 * round;
    const int64_t first = cut ? round : rows;
    fn(cut ? part.rows(0, first) : part, row);
    if (cut) fn(part.rows(first, rows - first), row + first);
    row += rows;
  }
}

// True if the library has kernels for all pieces; a planning queue hopes so.
bool usable(gpu::Queue& queue, const Linear& op) {
  if (queue.planning()) return true;
  bool all = true;
  for_pieces(queue, op, [&](const WeightPart& piece, int64_t) {
    all &= Products::of(queue).plan(key_of(piece.data, op.x, op.out, bool(op.bias))).usable;
  });
  return all;
}

// `scratch_begin` bytes of scratch are in use already. `waits`: for what reads the result, if it can.
void product(Stream& stream, const Linear& op, int64_t scratch_begin, bool waits = false) {
  gpu::Queue& queue = stream.queue();
  const int64_t tokens = op.x.dim(0);
  if (tokens == 0) return;
  const DType dtype = op.w.parts[0].data.dtype;
  const bool can = usable(queue, op);
  if (!can) queue.native();  // starts what makes op.x, which other products read then
  waits = waits && can && op.w.parts.size() == 1 && !op.bias &&
          (queue.planning() || Products::of(queue).plan(key_of(op.w, 0, op.x, op.out, {})).usable);
  const int64_t parts_bytes = waits ? DeferredLibraryProduct::parts_bytes(tokens, op.w.rows) : 0;
  const RoundedRows rounded =
      round_in_scratch(stream, op.x, dtype, op.spends_x && can, scratch_begin, parts_bytes + kWorkspaceBytes);
  if (waits) {
    queue.defer(std::make_unique<DeferredLibraryProduct>(op.out, op.w.parts[0].data, rounded));
    return;
  }
  if (queue.planning()) return;
  for_pieces(queue, op, [&](const WeightPart& piece, int64_t row) {
    const int64_t rows = piece.data.dim(0);
    const Plan& plan = Products::of(queue).plan(key_of(piece.data, op.x, op.out, bool(op.bias)));
    const Tensor out = op.out.cols(row, rows), bias = op.bias ? op.bias.rows(row, rows) : Tensor{};
    if (!plan.usable) {
      return linear_tiled(stream, {out, op.x, Weight{{&piece, 1}, rows, op.w.cols}, bias, op.precision});
    }
    if (bias) {
      const void* data = bias.data;
      BLAS_CHECK(library()->desc_set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &data, sizeof data));
    }
    multiply(queue, plan, piece.data, rounded.x.data, out, rounded.behind);
  });
}

// The product whose parts with scales are widened to bf16, one at a time.
const char* refuse_to_widen(const Weight& w, Precision precision) {
  if (precision != Precision::fast) return "rounds weights and activations";
  for (const WeightPart& part : w.parts) {
    if (part.data.dtype != DType::bf16 && !part.scale) return "for bf16 weights and such with scales only";
  }
  if (w.cols % 8 != 0) return "rows of the weight are not aligned";
  return refuse_library();
}

void widened_product(Stream& stream, const Linear& op, int64_t scratch_begin) {
  int64_t row = 0;
  for (const WeightPart& part : op.w.parts) {
    const int64_t rows = part.data.dim(0);
    WeightPart plain = part;
    int64_t used = scratch_begin;
    if (part.scale) {
      const int64_t bytes = dtype_bytes(DType::bf16, rows * op.w.cols);
      auto* memory = static_cast<std::byte*>(stream.queue().scratch(scratch_begin + bytes));
      plain = {make_tensor(memory + scratch_begin, DType::bf16, {rows, op.w.cols}, op.x.device), {}};
      widen_part(stream, plain.data, part);
      used += aligned(bytes);
    }
    const Tensor bias = op.bias ? op.bias.rows(row, rows) : Tensor{};
    product(stream, {op.out.cols(row, rows), op.x, Weight{{&plain, 1}, rows, op.w.cols}, bias, op.precision},
            used);
    row += rows;
  }
}

// Linear into scratch by `fn(product, scratch in use)`, then the activation.
template <class Fn>
void gate(Stream& stream, const GatedUp& op, const Fn& fn) {
  const int64_t tokens = op.x.dim(0);
  const int64_t both_bytes = aligned(tokens * op.w.rows * static_cast<int64_t>(sizeof(float)));
  // The product asks for more scratch behind this; the address is that of all scratch.
  void* memory = stream.queue().scratch(both_bytes);
  const Tensor both = make_tensor(memory, DType::f32, {tokens, op.w.rows}, op.out.device);
  fn(Linear{both, op.x, op.w, op.bias, op.precision}, both_bytes);
  silu_mul(stream, op.out, both);
}

}  // namespace

const char* refuse_library() {
  if (gpu::waiting_kernels() == gpu::Waiting::on_one_device)
    return "ranks share a device: cuBLASLt's code for a new shape would wait for all that runs there";
  return library() == nullptr ? "cuBLASLt is not on this machine" : nullptr;
}

void library_product(Stream& stream, const Tensor& out, const Tensor& x, const Tensor& w, void* workspace) {
  gpu::Queue& queue = stream.queue();
  if (queue.planning()) return;
  Products& products = Products::of(queue);
  const Plan& plan = products.plan(key_of(w, x, out, false));
  if (!plan.usable)
    throw failed("cuBLASLt has no product of {} by {} in {}", x.to_string(), w.to_string(),
                 dtype_name(w.dtype));
  multiply(queue, plan, w, x.data, out, workspace);
}

const char* refuse_library_gemm(const Stream&, const Linear& op) { return refuse(op.w, op.precision); }

void library_gemm(Stream& stream, const Linear& op) { product(stream, op, 0, true); }

const char* refuse_split_gemm(const Stream&, const Linear& op) {
  constexpr int64_t kFewestRows = 256;
  if (op.precision != Precision::exact) return "as exact as float32, at three times the work";
  if (op.x.dim(0) < kFewestRows) return "for many rows";
  if (op.w.parts[0].data.dtype != DType::bf16) return "for bf16 weights only";
  return refuse_weight(op.w);
}

// The smallest of the three parts of x first.
void split_gemm(Stream& stream, const Linear& op) {
  gpu::Queue& queue = stream.queue();
  const int64_t tokens = op.x.dim(0), cols = op.w.cols, part_bytes = dtype_bytes(DType::bf16, tokens * cols);
  const int64_t x_bytes = aligned(3 * part_bytes);
  auto* scratch = static_cast<std::byte*>(queue.scratch(x_bytes + static_cast<int64_t>(kWorkspaceBytes)));
  if (!queue.planning()) {
    const Tensor nothing;
    for (size_t i = 0; i < op.w.parts.size(); ++i) {
      for (const Tensor& bias : {nothing, op.bias}) {
        if (!Products::of(queue).plan(key_of(op.w, i, op.x, op.out, bias)).usable) {
          return linear_tiled(stream, op);
        }
      }
    }
  }
  split_rows(stream, make_tensor(scratch, DType::bf16, {3, tokens, cols}, op.x.device), op.x);
  if (queue.planning()) return linear_tiled(stream, op);  // it may be needed
  Products& products = Products::of(queue);
  int64_t row = 0;
  for (size_t i = 0; i < op.w.parts.size(); ++i) {
    const Tensor& data = op.w.parts[i].data;
    const Tensor out = op.out.cols(row, data.dim(0));
    for (int part = 2; part >= 0; --part) {
      const bool last = part == 0 && op.bias;
      const Plan& plan = products.plan(key_of(op.w, i, op.x, op.out, last ? op.bias : Tensor{}));
      if (last) {
        const float* bias = op.bias.as<float>() + row;
        BLAS_CHECK(library()->desc_set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
      }
      multiply(queue, plan, data, scratch + part * part_bytes, out, scratch + x_bytes, part < 2);
    }
    row += data.dim(0);
  }
}

const char* refuse_library_gated(const Stream&, const GatedUp& op) { return refuse(op.w, op.precision); }

void library_gated(Stream& stream, const GatedUp& op) {
  gpu::Queue& queue = stream.queue();
  constexpr int64_t kManyRows = 64;  // reading and writing the sums takes time
  const int64_t tokens = op.x.dim(0);
  if (op.w.parts[0].data.dtype == DType::bf16) {
    const DType sums = tokens >= kManyRows ? DType::bf16 : DType::f32;
    const int64_t bytes = aligned(dtype_bytes(sums, tokens * op.w.rows));
    const Tensor both = make_tensor(queue.scratch(bytes), sums, {tokens, op.w.rows}, op.out.device);
    const Linear rounded{both, op.x, op.w, op.bias, op.precision, op.spends_x};
    if (usable(queue, rounded)) {
      product(stream, rounded, bytes);
      queue.defer(std::make_unique<DeferredActivation>(op.out, both, bytes));
      if (!queue.planning()) return;  // the other way may be needed, too
    }
  }
  gate(stream, op, [&](const Linear& both, int64_t used) { product(stream, both, used); });
}

const char* refuse_widened_gemm(const Stream&, const Linear& op) {
  return refuse_to_widen(op.w, op.precision);
}

void widened_gemm(Stream& stream, const Linear& op) { widened_product(stream, op, 0); }

const char* refuse_widened_gated(const Stream&, const GatedUp& op) {
  return refuse_to_widen(op.w, op.precision);
}

void widened_gated(Stream& stream, const GatedUp& op) {
  gate(stream, op, [&](const Linear& both, int64_t used) { widened_product(stream, both, used); });
}

}  // namespace atom::ops::gpu_kernels
