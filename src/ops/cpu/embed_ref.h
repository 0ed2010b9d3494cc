// Embedding look-up and row gathering on the CPU: bound by memory, so one implementation serves.
#pragma once
#include "ops/embed.h"

namespace atom::ops::cpu {

void embed_ref(Stream& stream, const Embed& op);
void gather_rows_ref(Stream& stream, const GatherRows& op);

}  // namespace atom::ops::cpu
