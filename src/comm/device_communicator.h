// Ranks with a GPU each, or several with one: threads of this process whose collectives are work of their
// queues.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "comm/communicator.h"

namespace atom {

namespace gpu {
struct Exchange;
}

// A rank's end of an axis of GPUs; belongs to the rank's thread.
class DeviceCommunicator : public Communicator {
 public:
  // What a kernel of this rank is given to exchange numbers with those of the others: comm/gpu/exchange.h.
  virtual const gpu::Exchange& exchange() const = 0;
};

// What an axis is used for.
enum class Traffic : uint8_t {
  messages,          // send and recv only
  all,               // collectives too: inboxes are taken on every device
  all_through_host,  // the same with inboxes in host memory, as where devices cannot reach each other's
};

// Rank r's tensors lie on devices[r]. A device may have several ranks. gpu::expect_waiting_kernels(where)
// comes before everything on GPUs. Inboxes are in host memory where devices cannot reach each other's. Throws
// Error (invalid) for more ranks than an axis can have, (failed) when a device has too little memory. A
// collective that has waited `patience` seconds for a rank fails: the devices' work is an error from then on,
// and problem() says why.
std::vector<std::unique_ptr<Communicator>> device_communicators(std::span<const Device> devices,
                                                                Traffic traffic, double patience = 30);

}  // namespace atom
