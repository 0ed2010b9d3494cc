// Devices, their memory and queues, on the vendor's runtime.
#include <algorithm>
#include <cstdlib>

#include "base/text_util.h"
#include "tensor/gpu/vendor.h"

namespace atom::gpu {

void throw_error(GPU(Error_t) error, const char* call) {
  throw failed("the GPU failed: {} ({})", GPU(GetErrorString)(error), call);
}

Device::Kind backend() {
#if defined(__HIP_PLATFORM_AMD__)
  return Device::hip;
#else
  return Device::cuda;
#endif
}

int device_count() {
  int count = 0;
  if (GPU(GetDeviceCount)(&count) == GPU(Success)) return count;
  (void)GPU(GetLastError)();  // no driver, or none that fits: not an error of later calls
  return 0;
}

namespace {
#if defined(__HIP_PLATFORM_AMD__)
using Properties = hipDeviceProp_t;
size_t block_memory(const Properties& p) { return p.sharedMemPerBlock; }
#else
using Properties = cudaDeviceProp;
size_t block_memory(const Properties& p) { return p.sharedMemPerBlockOptin; }
#endif
}  // namespace

DeviceInfo device_info(Device device) {
  Properties properties;
  GPU_CHECK(GPU(SetDevice)(device.index));
  GPU_CHECK(GPU(GetDeviceProperties)(&properties, device.index));
  size_t free = 0, total = 0;
  GPU_CHECK(GPU(MemGetInfo)(&free, &total));
  int capability = properties.major * 10 + properties.minor;
  // Older code that the driver has translated knows nothing of early starts and of Hopper's instructions.
  if (const int known = kernel_capability(); known < 90) capability = std::min(capability, known);
  return {properties.name,
          static_cast<int64_t>(total),
          static_cast<int64_t>(free),
          properties.multiProcessorCount,
          capability,
          static_cast<int>(block_memory(properties))};
}

bool enable_peer_access(Device device, Device peer) {
  if (device == peer) return true;
  int possible = 0;
  GPU_CHECK(GPU(DeviceCanAccessPeer)(&possible, device.index, peer.index));
  if (possible == 0) return false;
  GPU_CHECK(GPU(SetDevice)(device.index));
  const GPU(Error_t) error = GPU(DeviceEnablePeerAccess)(peer.index, 0);
  if (error != GPU(Success) && error != GPU(ErrorPeerAccessAlreadyEnabled))
    throw_error(error, "DeviceEnablePeerAccess");
  (void)GPU(GetLastError)();
  return true;
}

namespace {
Waiting waiting = Waiting::nowhere;
}

Waiting waiting_kernels() { return waiting; }

// Not checked: without a profiler some drivers answer with an error.
void begin_profile() { static_cast<void>(GPU(ProfilerStart)()); }
void end_profile() { static_cast<void>(GPU(ProfilerStop)()); }

void expect_waiting_kernels(Waiting where) {
  waiting = where;
#if !defined(__HIP_PLATFORM_AMD__)
  // Loading a kernel waits for those that run on its device. All of them are loaded at the start where some
  // of these belong to other ranks; but a library that is loaded whole waits for the kernels of all devices.
  ::setenv("CUDA_MODULE_LOADING", where == Waiting::on_one_device ? "EAGER" : "LAZY", 1);
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);  // streams that share one stop each other
#endif
}

void* allocate(Device device, int64_t bytes) {
  GPU_CHECK(GPU(SetDevice)(device.index));
  void* data = nullptr;
  if (GPU(Malloc)(&data, static_cast<size_t>(bytes)) != GPU(Success)) {
    (void)GPU(GetLastError)();
    const DeviceInfo info = device_info(device);
    throw failed(
        "GPU {} has {} free of {}, and {} more are needed: use a smaller --max-num-batched-tokens, "
        "--kv-cache-bytes "
        "or model, or free the device of other programs",
        device.index, format_bytes(info.free_bytes), format_bytes(info.total_bytes), format_bytes(bytes));
  }
  return data;
}

void release(Device device, void* data) {
  (void)GPU(SetDevice)(device.index);
  (void)GPU(Free)(data);
}

void* allocate_pinned(int64_t bytes) {
  void* data = nullptr;
  GPU_CHECK(GPU(MallocHost)(&data, static_cast<size_t>(bytes)));
  return data;
}

void release_pinned(void* data) { (void)GPU(FreeHost)(data); }

Graph::~Graph() { (void)GPU(GraphExecDestroy)(static_cast<GPU(GraphExec_t)>(native_)); }

Event::Event(Device device) : device_(device) {
  GPU_CHECK(GPU(SetDevice)(device.index));
  GPU(Event_t) event;
  GPU_CHECK(GPU(EventCreateWithFlags)(&event, GPU(EventDisableTiming)));
  native_ = event;
}

Event::~Event() {
  (void)GPU(SetDevice)(device_.index);
  (void)GPU(EventDestroy)(static_cast<GPU(Event_t)>(native_));
}

void Event::record(Queue& queue) {
  GPU_CHECK(GPU(EventRecord)(static_cast<GPU(Event_t)>(native_), native_stream(queue)));
}

void Event::wait() { GPU_CHECK(GPU(EventSynchronize)(static_cast<GPU(Event_t)>(native_))); }

Queue::Queue(Device device, Mode mode, int64_t scratch_bytes)
    : device_(device), mode_(mode), scratch_bytes_(scratch_bytes) {
  const DeviceInfo info = device_info(device);
  processors_ = info.processors;
  capability_ = info.capability;
  block_memory_ = info.block_memory;
  if (mode == Mode::plan) return;
  GPU(Stream_t) stream;
  GPU_CHECK(GPU(StreamCreateWithFlags)(&stream, GPU(StreamNonBlocking)));
  stream_ = stream;
  if (scratch_bytes > 0) scratch_ = allocate(device, scratch_bytes);
  counters_ = static_cast<int32_t*>(allocate(device, kCounters * 4));
  GPU_CHECK(GPU(MemsetAsync)(counters_, 0, kCounters * 4, stream));
}

Queue::~Queue() {
  if (mode_ == Mode::plan) return;
  deferred_.reset();
  activate();
  (void)GPU(StreamSynchronize)(native_stream(*this));
  (void)GPU(StreamDestroy)(native_stream(*this));
  if (scratch_ != nullptr) release(device_, scratch_);
  release(device_, counters_);
}

void Queue::activate() const { GPU_CHECK(GPU(SetDevice)(device_.index)); }

void* Queue::native() {
  if (deferred_) take_over()->start(*this);
  return stream_;
}

void Queue::defer(std::unique_ptr<Deferred> work) {
  if (deferred_) take_over()->start(*this);
  deferred_ = std::move(work);
}

void* Queue::scratch(int64_t bytes) {
  scratch_peak_ = std::max(scratch_peak_, bytes);
  if (planning()) return nullptr;
  CHECK(bytes <= scratch_bytes_, "scratch of {} bytes, planned {}", bytes, scratch_bytes_);
  return scratch_;
}

void Queue::copy_to_device(void* to, const void* from, int64_t bytes) {
  if (planning() || bytes == 0) return;
  GPU_CHECK(
      GPU(MemcpyAsync)(to, from, static_cast<size_t>(bytes), GPU(MemcpyHostToDevice), native_stream(*this)));
}

void Queue::copy_to_host(void* to, const void* from, int64_t bytes) {
  if (planning() || bytes == 0) return;
  GPU_CHECK(
      GPU(MemcpyAsync)(to, from, static_cast<size_t>(bytes), GPU(MemcpyDeviceToHost), native_stream(*this)));
}

void Queue::copy_on_device(void* to, const void* from, int64_t bytes) {
  if (planning() || bytes == 0) return;
  GPU_CHECK(GPU(MemcpyAsync)(to, from, static_cast<size_t>(bytes), GPU(MemcpyDeviceToDevice),
                             native_stream(*this)));
}

void Queue::zero(void* to, int64_t bytes) {
  if (planning() || bytes == 0) return;
  GPU_CHECK(GPU(MemsetAsync)(to, 0, static_cast<size_t>(bytes), native_stream(*this)));
}

void Queue::wait() {
  if (!planning()) GPU_CHECK(GPU(StreamSynchronize)(native_stream(*this)));
}

void Queue::settle() {
  if (!planning() && !recording_) GPU_CHECK(GPU(StreamSynchronize)(static_cast<GPU(Stream_t)>(stream_)));
}

void Queue::introduce(const void* kernel) {
  if (planning() || !introduced_.insert(kernel).second) return;
  if (waiting == Waiting::across_devices) settle();
  // Once and for all: a limit set for each launch could be lowered by another thread, or behind a recording.
  GPU(FuncAttributes) attributes;
  GPU_CHECK(GPU(FuncGetAttributes)(&attributes, kernel));
  GPU_CHECK(GPU(FuncSetAttribute)(kernel, GPU(FuncAttributeMaxDynamicSharedMemorySize),
                                  block_memory_ - static_cast<int>(attributes.sharedSizeBytes)));
}

void Queue::begin_recording() {
  GPU_CHECK(GPU(StreamBeginCapture)(native_stream(*this), GPU(StreamCaptureModeThreadLocal)));
  recording_ = true;
}

std::unique_ptr<Graph> Queue::end_recording() {
  GPU(Graph_t) graph;
  recording_ = false;
  GPU_CHECK(GPU(StreamEndCapture)(native_stream(*this), &graph));
  GPU(GraphExec_t) exec;
  const GPU(Error_t) error = GPU(GraphInstantiateWithFlags)(&exec, graph, 0);
  (void)GPU(GraphDestroy)(graph);
  if (error != GPU(Success)) throw_error(error, "GraphInstantiateWithFlags");
  return std::make_unique<Graph>(exec);
}

void Queue::start(const Graph& graph) {
  GPU_CHECK(GPU(GraphLaunch)(static_cast<GPU(GraphExec_t)>(graph.native()), native_stream(*this)));
}

}  // namespace atom::gpu
