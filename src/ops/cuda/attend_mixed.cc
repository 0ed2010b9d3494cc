// Attention of a step in which decodes stand before prompts: the decodes by their own kernel, which reads
// each context once for all heads that share it, the prompts by theirs. Planned as what it consists of: the
// decodes take no scratch.
#include <algorithm>

#include "ops/gpu/decode_kernels.h"
#include "ops/gpu/kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

struct Parts {
  explicit Parts(const Attend& whole) : decode(whole), prompt(whole.attention) {
    const AttentionBatch& batch = *whole.store.batch;
    const auto first_prompt =
        std::ranges::find_if(batch.known, [](const AttentionSequence& s) { return s.rows != 1; });
    const auto count = static_cast<size_t>(first_prompt - batch.known.begin());
    rows = static_cast<int64_t>(count);
    decodes = {batch.sequences.first(count), batch.block_size, static_cast<int32_t>(rows),
               batch.known.first(count)};
    prompts = {batch.sequences.subspan(count), batch.block_size, batch.tokens, batch.known.subspan(count)};
    decode.store.batch = decode.attention.batch = &decodes;
    decode.store.qkv = whole.store.qkv.rows(0, rows);
    decode.attention.q = whole.attention.q.rows(0, rows);
    decode.attention.out = whole.attention.out.rows(0, rows);
    decode.gate = {};
    prompt.batch = &prompts;
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  int64_t rows;  // of decodes
  AttentionBatch decodes, prompts;
  Attend decode;
  PagedAttention prompt;
};

}  // namespace

const char* refuse_attend_mixed(const Stream& stream, const Attend& op) {
  constexpr int64_t kFewest = 4;
  const auto known = op.store.batch->known;
  if (known.empty()) return "the host does not know the sequences";
  const Parts parts(op);
  if (parts.rows < kFewest) return "few decodes, or not before prompts";
  if (parts.prompts.sequences.empty()) return "no prompts";
  if (const char* refusal = refuse_attend_decode(stream, parts.decode)) return refusal;
  return refuse_prompt(stream, parts.prompt) == nullptr ? nullptr : refuse_prefill(stream, parts.prompt);
}

void attend_mixed(Stream& stream, const Attend& op) {
  const Parts parts(op);
  attend_unsplit(stream, parts.decode);  // first: the store turns its queries
  run(stream, op.store);                 // once more for decodes, the same keys and values
  run(stream, parts.prompt);
  if (op.gate) run(stream, SigmoidGate{op.attention.out, op.gate});
}

}  // namespace atom::ops::gpu_kernels
