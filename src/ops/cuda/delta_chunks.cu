// The gated delta rule for steps that may have a prompt: its long sequences in chunks, all others token by
// token.
#include <algorithm>
#include <cmath>

#include "ops/cuda/delta_chunks.h"

namespace atom::ops::gpu_kernels {
namespace {

// The host does not know how long sequences are: of `tokens` rows, this many chunks at most.
int64_t most_chunks(int64_t tokens, int64_t sequences) {
  static_assert(kLeastChunkedRows >= kDeltaChunk);
  return tokens / kDeltaChunk + std::min(sequences, tokens / kDeltaChunk);
}

}  // namespace

const char* refuse_chunked_delta(const Stream& stream, const DeltaRule& op) {
  if (op.precision != Precision::fast) return "rounds keys and states";
  if (stream.queue().capability() < 80) return "needs compute capability 8.0";
  if (op.k_dim != kDeltaKeys || op.v_dim % 32 != 0) return "for keys of 128 lanes and values in 32s";
  if (op.out.dim(0) - static_cast<int64_t>(op.sequences.size()) + 1 < kLeastChunkedRows) return "for prompts";
  if (!aligned16(op.qkv.data) || op.qkv.strides[0] % 4 != 0) return "rows are not aligned";
  return nullptr;
}

void chunked_delta(Stream& stream, const DeltaRule& op) {
  const auto sequences = static_cast<int64_t>(op.sequences.size());
  const int64_t tokens = op.out.dim(0), chunks = most_chunks(tokens, sequences);
  const int64_t room = most_chunks(tokens, tokens);  // the same for every number of sequences
  const auto keys_bytes = room * op.k_heads * static_cast<int64_t>(sizeof(ChunkKeys));
  const auto heads_bytes = room * op.v_heads * static_cast<int64_t>(sizeof(ChunkHead));
  auto* memory = static_cast<std::byte*>(stream.queue().scratch(keys_bytes + heads_bytes));
  auto a = arguments_of<DeltaChunks>(op);
  a.count = static_cast<int>(sequences);
  a.keys = reinterpret_cast<ChunkKeys*>(memory);
  a.heads = reinterpret_cast<ChunkHead*>(memory + keys_bytes);
  delta_rule_short(stream, op);
  prepare_chunks(stream, a, chunks);
  pass_chunks(stream, a);
}

}  // namespace atom::ops::gpu_kernels
