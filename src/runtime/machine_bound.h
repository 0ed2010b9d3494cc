// The machine's own bound: memory bandwidth, measured.
#pragma once
#include "base/thread_pool.h"

namespace atom {

// Bytes per second that the pool's threads read together from memory, best of a few passes over a buffer
// larger than caches. Takes about a second.
double measure_read_bandwidth(ThreadPool& pool);

}  // namespace atom
