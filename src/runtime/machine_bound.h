// The machine's own bound: memory bandwidth, measured.
#pragma once
#include "base/thread_pool.h"
#include "tensor/tensor.h"

namespace atom {

// Bytes per second that the pool's threads read together from memory, best of a few passes over a buffer
// larger than caches. Takes about a second.
double measure_read_bandwidth(ThreadPool& pool);
// Of the device's memory; on the CPU with a team of `threads`.
double measure_read_bandwidth(Device device, int threads);

}  // namespace atom
