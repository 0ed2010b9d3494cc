// What a forward pass is given: passed as an argument, never global.
#pragma once
#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "ops/attention.h"
#include "ops/delta_rule.h"
#include "ops/linear.h"
#include "tensor/buffer.h"

namespace atom {

// The tokens of one step, flat: prefill chunks and decodes side by side.
struct Batch {
  std::span<const int32_t> token_ids;     // [tokens]
  std::span<const int32_t> positions;     // [tokens]
  std::span<const int32_t> rope_lengths;  // [tokens] context length that a length-dependent rope assumes
  std::span<const int32_t> logit_rows;    // rows whose logits are wanted, ascending
  std::span<const ops::AttentionBatch> attention;     // per cache group
  std::span<const ops::RecurrentSequence> recurrent;  // empty if no layer has state
  // Rows 0, 1, ... up to the last whose state is not yet kept: see SlotStates::rows.
  std::span<const int32_t> open_rows = {};
  int64_t tokens() const { return static_cast<int64_t>(token_ids.size()); }
};

// Activations of a step. What is allocated before the first block lives for the whole step; a block's own
// tensors live until the block after the next begins, so that its deferred sum can be read by the next norm.
class StepArena {
 public:
  explicit StepArena(int64_t bytes_per_half, Device device = {})
      : halves_{Arena(bytes_per_half, device), Arena(bytes_per_half, device)} {}
  // Without memory, to learn the peak of a step on `device`.
  static StepArena planning(Device device) {
    return {Arena::planning(device, 0), Arena::planning(device, 1)};
  }
  Tensor alloc(DType dtype, std::initializer_list<int64_t> shape) {
    return halves_[current_].alloc(dtype, shape);
  }
  void begin_step() {
    halves_[0].release(0);
    halves_[1].release(0);
    current_ = 0;
    base_ = -1;
  }
  // Ends the lifetime of the block before the last one.
  void begin_block() {
    if (base_ < 0) base_ = halves_[0].mark();
    current_ ^= 1;
    halves_[current_].release(current_ == 0 ? base_ : 0);
  }
  int64_t peak_bytes() const { return halves_[0].peak_bytes() + halves_[1].peak_bytes(); }
  int64_t peak_half_bytes() const { return std::max(halves_[0].peak_bytes(), halves_[1].peak_bytes()); }

 private:
  StepArena(Arena a, Arena b) : halves_{std::move(a), std::move(b)} {}

  Arena halves_[2];
  int current_ = 0;
  int64_t base_ = -1;  // end of the step's lasting tensors in half 0; -1 before the first block
};

// One layer's keys and values.
struct KvPool {
  Tensor k, v;  // [blocks, kv_heads, block_size, head_dim]
  int group = 0;
  ops::KvScales scales;
  Tensor key_scales = {};  // of index keys in E4M3: [blocks, block_size] f32; else null
};

// One recurrent layer's state of every slot.
struct SlotStates {
  Tensor conv, recurrent;  // [slots, elements] f32
  Tensor rows;             // [tokens, LayerState::row] f32: what Batch::open_rows were computed from
};

// Hears what blocks decide while a step is computed. Of ranks that share a block the first is heard, on its
// thread.
class Observer {
 public:
  enum class Choice : uint8_t {
    experts,
    positions  // of sparse attention; a row at one of the first `choices of a row` positions has made none
  };
  virtual ~Observer() = default;
  // `choices`: [rows of the step, choices of a row] i32, on the host and only during the call. `block` is the
  // path of what decided.
  virtual void observe(Choice kind, const std::string& block, const Tensor& choices) = 0;
};

struct Ctx {
  Stream& stream;
  StepArena& arena;
  const Batch& batch;
  std::span<const KvPool> kv;              // by cache handle
  std::span<const SlotStates> states;      // by state handle
  std::span<const ops::RopeAngles> ropes;  // by rope handle
  const Mesh& mesh;
  ops::Precision precision;
  Observer* observer = nullptr;
  std::span<const Tensor> carries = {};  // by carry handle
  int draft_step = 0;                    // of the drafter; from 1 on its input is its own output

  const KvPool& cache(int handle) const { return kv[handle]; }
  const SlotStates& state(int handle) const { return states[handle]; }
  Tensor carry(int handle) const { return carries[handle]; }  // [tokens, cols] i32
  const ops::RopeAngles& rope(int handle) const { return ropes[handle]; }
  const ops::AttentionBatch& attention(const KvPool& pool) const { return batch.attention[pool.group]; }
  Tensor alloc(int64_t rows, int64_t cols) const { return arena.alloc(DType::f32, {rows, cols}); }
  // Tells the observer, if there is one, when the choices have been made.
  void observe(Observer::Choice kind, const std::string& block, Tensor choices) const;
};

}  // namespace atom
