// The collectives of device_communicator.cc as kernels.
#pragma once
#include "comm/gpu/exchange.h"

namespace atom::gpu {

// data += the data of all other ranks, summed in rank order on every rank.
void all_reduce(Queue& queue, const Exchange& exchange, float* data, int64_t n);
// As Communicator::all_gather.
void all_gather(Queue& queue, const Exchange& exchange, const Tensor& out, const Tensor& in);

}  // namespace atom::gpu
