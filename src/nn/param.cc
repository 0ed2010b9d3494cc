#include "nn/param.h"

#include "base/error.h"

namespace atom {

Range local_range(int64_t full, const Shard& shard, int rank, int size, const std::string& name) {
  if (shard.dim < 0 || size == 1) return {0, full};
  const int64_t units = full / shard.unit;
  if (full % shard.unit != 0) {
    throw invalid("{}: {} elements are not whole units of {}, so {} ranks cannot share them", name, full,
                  shard.unit, size);
  }
  if (shard.ragged && units >= size) {
    const int64_t begin = units * rank / size, end = units * (rank + 1) / size;
    return {begin * shard.unit, (end - begin) * shard.unit};
  }
  if (units % size != 0 && size % units != 0) {
    throw invalid(
        "{}: {} units of {} cannot be cut over {} ranks; choose a rank count that divides {} or is a "
        "multiple of it",
        name, units, shard.unit, size, units);
  }
  const int64_t per_rank = units >= size ? units / size : 1;
  return {rank * units / size * shard.unit, per_rank * shard.unit};
}

}  // namespace atom
