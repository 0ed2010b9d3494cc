// The work unit of paged attention: the query vectors of one kv head against a range of keys. Plain pointers
// only, because the kernels are compiled per instruction set.
#pragma once
#include <cstdint>

namespace atom::ops::cpu {

enum class KvType : uint8_t { f32, bf16, f16, f8e4m3 };

struct AttentionJob {
  const float* q = nullptr;  // see query()
  int64_t q_stride = 0;
  int32_t rows = 0, group = 0, head_dim = 0;
  int64_t first_position = 0;  // of row 0
  int64_t begin = 0, end = 0;  // keys to visit, not empty; all of them are visible to some row
  int32_t window = 0;          // 0: none
  float scale = 0;             // of q·k as it is stored
  const char* k = nullptr;     // this kv head's slots in block 0
  const char* v = nullptr;
  int64_t k_block_bytes = 0, v_block_bytes = 0;  // from one block to the next
  const int32_t* block_table = nullptr;
  int32_t block_size = 0;
  KvType type = KvType::f32;
  // Results per vector: acc = sum of 2^(score - max) * v over the keys, with scores in units of log2.
  float* acc = nullptr;      // [vectors, attention_stride(head_dim)]
  float* max = nullptr;      // [vectors]
  float* sum = nullptr;      // [vectors]
  float* scratch = nullptr;  // 64-byte aligned, attention_scratch(head_dim, vectors) floats

  int32_t vectors() const { return rows * group; }
  // Vector v = row * group + head of the group.
  const float* query(int32_t v) const { return q + v / group * q_stride + int64_t{v % group} * head_dim; }
};

// Floats from one vector to the next in padded buffers: whole vectors and whole AMX tiles.
constexpr int64_t attention_stride(int64_t head_dim) { return (head_dim + 31) / 32 * 32; }
// Keys taken at a time.
inline constexpr int32_t kAttentionTile = 64;

constexpr int64_t attention_scratch(int64_t head_dim, int64_t vectors) {
  const int64_t stride = attention_stride(head_dim), padded = (vectors + 31) / 32 * 32;
  return padded * stride + 3 * kAttentionTile * stride + 64 * kAttentionTile;
}

void attend_avx2(const AttentionJob& job);
void attend_avx512(const AttentionJob& job);
// Caches of bf16 and E4M3; few vectors go to attend_avx512.
void attend_amx(const AttentionJob& job);

}  // namespace atom::ops::cpu
