// Collectives over the inboxes of exchange.h.
// Bound: the bytes that leave a device over its link's rate; for few numbers, one trip of a flag. Grid: a
// block per run of numbers, at most Exchange::blocks, each of which takes every so many-th run.
#include "comm/gpu/collectives.h"

#include <algorithm>

namespace atom::gpu {
namespace {

constexpr int kThreads = 512;
constexpr int64_t kTwoStepBytes = int64_t{256} << 10;  // from here on, with more than two ranks

// Everybody sends everything to everybody. A run is `per` vectors.
template <class V>
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(const GPU_IN_PLACE Exchange e, V* data, int64_t n, int per) {
  if (!e.shares_device) let_next_start();
  wait_for_previous();
  Exchanger x(e);
  for (int64_t begin = int64_t{blockIdx.x} * per; begin < n; begin += int64_t{gridDim.x} * per) {
    V* run = data + begin;
    const int count = static_cast<int>(min(int64_t{per}, n - begin));
    for (int i = threadIdx.x; i < count; i += kThreads) {
      for (int p = 1; p <= x.others(); ++p) x.outbox<V>(x.peer(p))[i] = run[i];
    }
    x.swap();
    for (int i = threadIdx.x; i < count; i += kThreads) run[i] = x.sum_with(run[i], i);
  }
  let_next_start();
  x.finish();
}

// Each rank sums one part and sends it to all. A run is a part of `per` vectors for each rank.
template <class V>
__global__ void __launch_bounds__(kThreads)
    reduce_in_parts_kernel(const GPU_IN_PLACE Exchange e, V* data, int64_t n, int per) {
  if (!e.shares_device) let_next_start();
  wait_for_previous();
  Exchanger x(e);
  const int64_t step = int64_t{per} * e.size;
  for (int64_t begin = blockIdx.x * step; begin < n; begin += gridDim.x * step) {
    auto part = [&](int r) { return data + begin + int64_t{r} * per; };
    auto count = [&](int r) {
      return static_cast<int>(max(int64_t{0}, min(int64_t{per}, n - begin - int64_t{r} * per)));
    };
    for (int p = 1; p <= x.others(); ++p) {
      const int r = x.peer(p);
      for (int i = threadIdx.x; i < count(r); i += kThreads) x.outbox<V>(r)[i] = part(r)[i];
    }
    x.swap();
    for (int i = threadIdx.x; i < count(e.rank); i += kThreads) {
      V* own = part(e.rank) + i;
      const V sum = x.sum_with(*own, i);
      *own = sum;
      for (int p = 1; p <= x.others(); ++p) x.outbox<V>(x.peer(p))[i] = sum;
    }
    x.swap();
    for (int p = 1; p <= x.others(); ++p) {
      const int r = x.peer(p);
      for (int i = threadIdx.x; i < count(r); i += kThreads) part(r)[i] = load_fresh(x.inbox<V>(r) + i);
    }
  }
  let_next_start();
  x.finish();
}

// A run is `per` columns of every rank's part of a row, of which there are `runs`.
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const GPU_IN_PLACE Exchange e, float* out, int64_t out_stride, int64_t total,
                  const float* in, int64_t in_stride, int64_t rows, int runs, int per) {
  if (!e.shares_device) let_next_start();
  wait_for_previous();
  Exchanger x(e);
  for (int64_t run = blockIdx.x; run < rows * runs; run += gridDim.x) {
    const int64_t row = run / runs, skip = run % runs * per;
    auto first = [&](int r) { return total * r / e.size; };
    auto count = [&](int r) {
      return static_cast<int>(max(int64_t{0}, min(int64_t{per}, first(r + 1) - first(r) - skip)));
    };
    const float* own = in + row * in_stride + skip;
    float* to = out + row * out_stride + skip;
    for (int i = threadIdx.x; i < count(e.rank); i += kThreads) {
      to[first(e.rank) + i] = own[i];
      for (int p = 1; p <= x.others(); ++p) x.outbox<float>(x.peer(p))[i] = own[i];
    }
    x.swap();
    for (int p = 1; p <= x.others(); ++p) {
      const int r = x.peer(p);
      for (int i = threadIdx.x; i < count(r); i += kThreads)
        to[first(r) + i] = load_fresh(x.inbox<float>(r) + i);
    }
  }
  let_next_start();
  x.finish();
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Vectors of a run: enough for every thread, few enough that all blocks have one, no more than a box holds.
int run_of(const Exchange& e, int64_t vectors, int64_t bytes) {
  return static_cast<int>(std::clamp<int64_t>(ceil_div(vectors, e.blocks), kThreads, kExchangeBytes / bytes));
}

template <class V>
void reduce(Queue& queue, const Exchange& e, float* data, int64_t n) {
  const int64_t vectors = n / static_cast<int64_t>(sizeof(V) / sizeof(float));
  const bool in_parts = e.size > 2 && n * static_cast<int64_t>(sizeof(float)) >= kTwoStepBytes;
  const int64_t parts = in_parts ? e.size : 1;
  const int per = run_of(e, ceil_div(vectors, parts), sizeof(V));
  const int64_t blocks = std::min<int64_t>(e.blocks, ceil_div(vectors, per * parts));
  launch(queue, in_parts ? reduce_in_parts_kernel<V> : reduce_kernel<V>, dim3(static_cast<unsigned>(blocks)),
         dim3(kThreads), 0, e, reinterpret_cast<V*>(data), vectors, per);
}

}  // namespace

void all_reduce(Queue& queue, const Exchange& exchange, float* data, int64_t n) {
  if (n == 0) return;
  if (n % 4 == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0)
    return reduce<float4>(queue, exchange, data, n);
  reduce<float>(queue, exchange, data, n);
}

void all_gather(Queue& queue, const Exchange& exchange, const Tensor& out, const Tensor& in) {
  const int64_t rows = out.dim(0), most = ceil_div(out.dim(1), exchange.size);
  if (rows == 0) return;
  const int per = run_of(exchange, rows * most, sizeof(float));
  const int64_t runs = ceil_div(most, per);
  const int64_t blocks = std::min<int64_t>(exchange.blocks, rows * runs);
  launch(queue, gather_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0, exchange,
         out.as<float>(), out.strides[0], out.dim(1), in.as<float>(), in.strides[0], rows,
         static_cast<int>(runs), per);
}

}  // namespace atom::gpu
