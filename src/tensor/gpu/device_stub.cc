// The build without a GPU backend: there are no devices, so nothing else is ever called.
#include "tensor/gpu.h"

namespace atom::gpu {
namespace {
[[noreturn]] void absent() {
  CHECK(false, "this build has no GPU backend");
  std::abort();
}
}  // namespace

Device::Kind backend() { return Device::cpu; }
int device_count() { return 0; }
DeviceInfo device_info(Device) { absent(); }
bool enable_peer_access(Device, Device) { absent(); }
void expect_waiting_kernels(Waiting) {}
Waiting waiting_kernels() { return Waiting::nowhere; }
double measure_read_bandwidth(Device) { absent(); }
void begin_profile() { absent(); }
void end_profile() { absent(); }
void* allocate(Device, int64_t) { absent(); }
void release(Device, void*) { absent(); }
void* allocate_pinned(int64_t) { absent(); }
void release_pinned(void*) { absent(); }
Graph::~Graph() = default;
Event::Event(Device device) : device_(device) { absent(); }
Event::~Event() = default;
void Event::record(Queue&) { absent(); }
void Event::wait() { absent(); }
Queue::Queue(Device device, Mode mode, int64_t) : device_(device), mode_(mode) { absent(); }
Queue::~Queue() = default;
void Queue::activate() const { absent(); }
void* Queue::native() { absent(); }
void Queue::defer(std::unique_ptr<Deferred>) { absent(); }
void* Queue::scratch(int64_t) { absent(); }
void Queue::copy_to_device(void*, const void*, int64_t) { absent(); }
void Queue::copy_to_host(void*, const void*, int64_t) { absent(); }
void Queue::copy_on_device(void*, const void*, int64_t) { absent(); }
void Queue::copy_pinned(void*, const void*, int64_t) { absent(); }
void Queue::zero(void*, int64_t) { absent(); }
void Queue::wait() { absent(); }
void Queue::settle() { absent(); }
void Queue::introduce(const void*) { absent(); }
void Queue::begin_recording() { absent(); }
std::unique_ptr<Graph> Queue::end_recording() { absent(); }
void Queue::start(const Graph&) { absent(); }

}  // namespace atom::gpu
