// What tests of GPU entries over a paged cache share: sequences with shuffled blocks, on both sides.
#pragma once
#include <algorithm>
#include <numeric>
#include <utility>

#include "ops/attention.h"
#include "ops/gpu/device_test.h"

namespace atom::ops {

struct PagedRows {
  std::vector<std::vector<int32_t>> tables;
  std::vector<AttentionSequence> host, placed;
  AttentionBatch host_batch, device_batch;
  int32_t blocks = 0;
};

class GpuPaged : public GpuOps {
 protected:
  // lengths: rows and context of each sequence.
  PagedRows& paged(const std::vector<std::pair<int32_t, int32_t>>& lengths, int32_t block_size) {
    PagedRows& p = batches_.emplace_back();
    int32_t row = 0;
    for (auto [rows, context] : lengths) p.blocks += (rows + context + block_size - 1) / block_size;
    std::vector<int32_t> order(p.blocks);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), rng_);
    for (auto [rows, context] : lengths) {
      auto& table = p.tables.emplace_back();
      for (int32_t b = 0; b * block_size < rows + context; ++b) {
        table.push_back(order.back());
        order.pop_back();
      }
      p.placed.push_back({row, rows, context, upload_span(table).data()});
      p.host.push_back({row, rows, context, nullptr});
      row += rows;
    }
    for (size_t i = 0; i < p.host.size(); ++i) p.host[i].block_table = p.tables[i].data();
    p.host_batch = {p.host, block_size, row};
    p.device_batch = {upload_span(p.placed), block_size, row};
    return p;
  }
  // The first sequence becomes one that pads a recorded step; only its device side.
  void pad_first(PagedRows& p) {
    p.placed.front().block_table = nullptr;
    p.device_batch.sequences = upload_span(p.placed);
  }
  void forget() {
    memory_.clear();
    buffers_.clear();
    batches_.clear();
  }
  std::deque<PagedRows> batches_;
};

// Elements of a cache that differ between the two sides: a value at the edge of two roundings may fall to
// either.
inline int64_t differing(const Tensor& host, const std::vector<std::byte>& device) {
  int64_t differ = 0;
  for (int64_t i = 0; i < host.elements(); ++i) {
    if (host.dtype == DType::f32) {
      const double a = host.as<float>()[i], b = reinterpret_cast<const float*>(device.data())[i];
      differ += !(std::abs(a - b) <= 1e-5 * (1 + std::abs(a)));
    } else if (host.dtype == DType::f8e4m3) {
      differ += host.as<uint8_t>()[i] != std::to_integer<uint8_t>(device[static_cast<size_t>(i)]);
    } else {
      differ += host.as<uint16_t>()[i] != reinterpret_cast<const uint16_t*>(device.data())[i];
    }
  }
  return differ;
}

}  // namespace atom::ops
