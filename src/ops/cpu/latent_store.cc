// Fills the latent cache: rows are dealt to the team.
#include <algorithm>
#include <vector>

#include "ops/cpu/kv_slots.h"
#include "ops/cpu/latent.h"

namespace atom::ops::cpu {

void latent_store(Stream& stream, const LatentStore& op, const StoreKernels& kernels) {
  const LatentShape& s = op.shape;
  // At least 16 K floats for one member, so that waking the team pays.
  const int64_t grain = std::max<int64_t>(1, 16384 / op.q.dim(1));
  const KvType type = kv_type(op.cache.dtype);
  stream.pool().parallel_for(op.q.dim(0), grain, [&](int64_t begin, int64_t end) {
    thread_local std::vector<float> entry;
    if (static_cast<int32_t>(entry.size()) < s.entry_dim()) entry.resize(s.entry_dim());
    HeadTransform rotate{
        .head_dim = s.rope_dim, .rotary_dim = s.rope_dim, .interleaved = op.rope_interleaved};
    for_rows(*op.batch, begin, end, [&](const AttentionSequence& sequence, int64_t row, int64_t t) {
      rotate.cos = op.rope.cos.row<float>(t);
      rotate.sin = op.rope.sin.row<float>(t);
      for (int64_t h = 0; h < s.heads; ++h) {
        float* q_pe = op.q.row<float>(t) + h * s.query_dim() + s.nope_dim;
        kernels.transform(q_pe, q_pe, rotate);
      }
      float* kv = op.kv.row<float>(t);
      kernels.norm(entry.data(), kv, nullptr, op.norm.as<float>(), s.kv_rank, op.norm_eps, 0);
      kernels.transform(entry.data() + s.kv_rank, kv + s.kv_rank, rotate);
      kernels.store(type, kv_slot(op.cache, sequence.block_table, sequence.context + row, 0), entry.data(),
                    s.entry_dim());
    });
  });
}

}  // namespace atom::ops::cpu
