// Attention of a step in which decodes stand before prompts: the decodes by their own kernel, which reads
// each context once for all heads that share it, the prompts by theirs. Planned as what it consists of: the
// decodes take no scratch.
#include <algorithm>

#include "ops/gpu/decode_kernels.h"
#include "ops/gpu/deferred.h"
#include "ops/gpu/kernels.h"
#include "ops/gpu/prompt_kernels.h"

namespace atom::ops::gpu_kernels {
namespace {

struct Parts {
  // The rows of `whole` go to `out`.
  Parts(const Attend& whole, const Tensor& out) : decode(whole), prompt(whole.attention) {
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
    decode.attention.out = out.rows(0, rows);
    decode.gate = {};
    prompt.out = out;
    prompt.batch = &prompts;
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;

  int64_t rows;  // of decodes
  AttentionBatch decodes, prompts;
  Attend decode;
  PagedAttention prompt;
};

using PromptEntry = void (*)(Stream&, const PagedAttention&);

// What takes the prompts and can write bf16, too; null: nothing does.
PromptEntry rounding_entry(const Stream& stream, const PagedAttention& prompt) {
  if (refuse_prompt(stream, prompt) == nullptr) return start_prompt;
  return refuse_widened_prompt(stream, prompt) == nullptr ? start_widened_prompt : nullptr;
}

void start_mixed(Stream& stream, const Attend& op, const Tensor& out, PromptEntry entry) {
  const Parts parts(op, out);
  attend_unsplit(stream, parts.decode);  // first: the store turns its queries
  run(stream, op.store);                 // once more for decodes, the same keys and values
  entry(stream, parts.prompt);
}

struct DeferredMixed : DeferredRows {
  DeferredMixed(const Attend& o, PromptEntry e, int64_t bytes)
      : DeferredRows(o.attention.out, bytes), op(o), batch(*o.store.batch), entry(e) {
    op.store.batch = op.attention.batch = &batch;
  }
  void start(gpu::Queue& queue) override {
    Stream stream(queue);
    start_mixed(stream, op, out, entry);
  }
  void start_rounded(gpu::Queue& queue, const Tensor& rounded, bool) override {
    Stream stream(queue);
    const bool narrow = rounded.dtype == DType::bf16;
    start_mixed(stream, op, narrow ? rounded : out, entry);
    if (!narrow) round_rows(stream, rounded, out);
  }
  Attend op;
  AttentionBatch batch;
  PromptEntry entry;
};

}  // namespace

const char* refuse_attend_mixed(const Stream& stream, const Attend& op) {
  constexpr int64_t kFewest = 4;
  const auto known = op.store.batch->known;
  if (known.empty()) return "the host does not know the sequences";
  const Parts parts(op, op.attention.out);
  if (parts.rows < kFewest) return "few decodes, or not before prompts";
  if (parts.prompts.sequences.empty()) return "no prompts";
  if (const char* refusal = refuse_attend_decode(stream, parts.decode)) return refusal;
  return refuse_prompt(stream, parts.prompt) == nullptr ? nullptr : refuse_prefill(stream, parts.prompt);
}

void attend_mixed(Stream& stream, const Attend& op) {
  const Tensor& out = op.attention.out;
  const Parts parts(op, out);
  const PromptEntry entry = rounding_entry(stream, parts.prompt);
  if (entry == nullptr || op.gate) {
    start_mixed(stream, op, out, entry == nullptr ? prefill_attention : entry);
    if (op.gate) run(stream, SigmoidGate{out, op.gate});
    return;
  }
  const int64_t bytes = entry == start_widened_prompt ? widened_scratch(parts.prompt) : 0;
  stream.queue().defer(std::make_unique<DeferredMixed>(op, entry, bytes));
}

}  // namespace atom::ops::gpu_kernels
