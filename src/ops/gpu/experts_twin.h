// Random experts of any storage, the same on the host and on a device, for tests.
#pragma once
#include <cmath>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include "ops/moe.h"
#include "tensor/mxfp4_pieces.h"
#include "tensor/small_floats.h"

namespace atom::ops {

// mxfp4_8x64: f4e2m1x2 on the host.
struct ExpertsCase {
  DType gate_up, down;
  int64_t hidden, inter;
  bool apart = false;  // gate and up in two parts
};

// Experts at equal distances, the same on both sides.
class ExpertsTwin {
 public:
  ExpertsTwin(std::mt19937& rng, const ExpertsCase& c, int64_t experts, bool biased) {
    std::vector<std::vector<Slot>> slots(static_cast<size_t>(experts));
    for (auto& of_expert : slots) {
      const int64_t rows = c.apart ? c.inter : 2 * c.inter;
      for (int64_t r = 0; r < 2 * c.inter; r += rows)
        of_expert.push_back(matrix(rng, c.gate_up, rows, c.hidden));
      of_expert.push_back(matrix(rng, c.down, c.hidden, c.inter));
      of_expert.push_back(vector(rng, 2 * c.inter));
      of_expert.push_back(vector(rng, c.hidden));
    }
    host.bytes = bytes_.data();
    host.fill(slots, c, biased, {});
    slots_ = std::move(slots);
    c_ = c;
    biased_ = biased;
  }
  void placed_at(void* data, Device on) {
    device.bytes = static_cast<std::byte*>(data);
    device.fill(slots_, c_, biased_, on);
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  struct Slot {
    DType type;  // on the host
    int64_t rows, cols, at, scales_at = -1, pieces_at = -1;
  };
  struct Side {
    std::byte* bytes;
    std::deque<std::vector<WeightPart>> parts;
    std::vector<Weight> gate_up, down;
    std::vector<Tensor> gate_up_bias, down_bias;

    void fill(const std::vector<std::vector<Slot>>& slots, const ExpertsCase& c, bool biased, Device on) {
      for (const auto& of_expert : slots) {
        auto& gate_up_parts = parts.emplace_back();
        size_t i = 0;
        for (; i + 3 < of_expert.size(); ++i) gate_up_parts.push_back(part(of_expert[i], on));
        gate_up.push_back({gate_up_parts, 2 * c.inter, c.hidden});
        auto& down_parts = parts.emplace_back();
        down_parts.push_back(part(of_expert[i], on));
        down.push_back({down_parts, c.hidden, c.inter});
        if (!biased) continue;
        gate_up_bias.push_back(make_tensor(bytes + of_expert[i + 1].at, DType::f32, {2 * c.inter}, on));
        down_bias.push_back(make_tensor(bytes + of_expert[i + 2].at, DType::f32, {c.hidden}, on));
      }
    }
    WeightPart part(const Slot& s, Device on) const {
      if (on.kind != Device::cpu && s.pieces_at >= 0)
        return {piece_tensor(bytes + s.pieces_at, s.rows, s.cols, on), {}};
      WeightPart p{make_tensor(bytes + s.at, s.type, {s.rows, s.cols}, on), {}};
      if (s.type == DType::f8e4m3) {
        const int64_t down_blocks = (s.rows + 127) / 128, across = (s.cols + 127) / 128;
        p.scale = {make_tensor(bytes + s.scales_at, DType::f32, {down_blocks, across}, on), 128, 128};
      } else if (s.type == DType::f4e2m1x2) {
        p.scale = {make_tensor(bytes + s.scales_at, DType::e8m0, {s.rows, s.cols / 32}, on), 1, 32};
      }
      return p;
    }
  };
  Side host, device;

 private:
  int64_t take(int64_t bytes) {
    const auto at = static_cast<int64_t>(bytes_.size());
    bytes_.resize(static_cast<size_t>(at + (bytes + 63) / 64 * 64));
    return at;
  }
  Slot matrix(std::mt19937& rng, DType type, int64_t rows, int64_t cols) {
    if (type == DType::mxfp4_8x64) {
      Slot s = matrix(rng, DType::f4e2m1x2, rows, cols);
      s.pieces_at = take(piece_bytes(rows, cols));
      cut_into_pieces(make_tensor(&bytes_[s.at], s.type, {rows, cols}),
                      make_tensor(&bytes_[s.scales_at], DType::e8m0, {rows, cols / 32}),
                      &bytes_[s.pieces_at]);
      return s;
    }
    Slot s{type, rows, cols, take(dtype_bytes(type, rows * cols))};
    const float size = 1 / std::sqrt(static_cast<float>(cols));
    std::normal_distribution<float> normal(0, size);
    if (!is_scaled_type(type)) {
      for (int64_t i = 0; i < rows * cols; ++i) {
        const float value = normal(rng);
        const uint16_t half = type == DType::bf16 ? f32_to_bf16(value) : f32_to_f16(value);
        if (type == DType::f32) std::memcpy(&bytes_[s.at + 4 * i], &value, 4);
        if (type != DType::f32) std::memcpy(&bytes_[s.at + 2 * i], &half, 2);
      }
      return s;
    }
    for (int64_t i = 0; i < dtype_bytes(type, rows * cols); ++i) {
      uint8_t byte = static_cast<uint8_t>(rng());
      if (type == DType::f8e4m3 && (byte & 0x7F) == 0x7F) byte = 0;
      bytes_[s.at + i] = static_cast<std::byte>(byte);
    }
    if (type == DType::f8e4m3) {
      const int64_t blocks = (rows + 127) / 128 * ((cols + 127) / 128);
      s.scales_at = take(4 * blocks);
      for (int64_t i = 0; i < blocks; ++i) {
        const float scale = size / 100 * (1 + static_cast<float>(rng() % 100) / 100);
        std::memcpy(&bytes_[s.scales_at + 4 * i], &scale, 4);
      }
    } else {
      s.scales_at = take(rows * cols / 32);
      for (int64_t i = 0; i < rows * cols / 32; ++i)
        bytes_[s.scales_at + i] = static_cast<std::byte>(120 + rng() % 4);
    }
    return s;
  }
  Slot vector(std::mt19937& rng, int64_t n) {
    const Slot s{DType::f32, 1, n, take(4 * n)};
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < n; ++i) {
      const float value = normal(rng);
      std::memcpy(&bytes_[s.at + 4 * i], &value, 4);
    }
    return s;
  }

  std::vector<std::byte> bytes_;
  std::vector<std::vector<Slot>> slots_;
  ExpertsCase c_;
  bool biased_ = false;
};

}  // namespace atom::ops
