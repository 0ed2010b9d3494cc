// GPUs as the rest of the program sees them: devices, their memory, a queue of work and recorded graphs. No
// vendor header is needed here. In a build without a GPU backend, and on a machine without a driver,
// device_count() is 0 and nothing else here may be called.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>

#include "tensor/tensor.h"

namespace atom::gpu {

// The vendor this build has kernels for; cpu: none.
Device::Kind backend();
// Devices that a driver offers. Never throws.
int device_count();

struct DeviceInfo {
  std::string name;
  int64_t total_bytes = 0, free_bytes = 0;
  int processors = 0;
  int capability = 0;    // 90: compute capability 9.0
  int block_memory = 0;  // bytes of shared memory that one block can have
};
DeviceInfo device_info(Device device);

// Lets kernels of `device` read and write the memory of `peer`. False: this machine cannot.
bool enable_peer_access(Device device, Device peer);
// Where kernels of several threads, each with a queue of its own, wait for each other.
enum class Waiting : uint8_t { nowhere, across_devices, on_one_device };
// Nothing that the driver does by itself may then stop one of them behind another. To be called before
// everything else here.
void expect_waiting_kernels(Waiting where);
Waiting waiting_kernels();

// Bytes per second that all processors read together from the device's memory, best of a few passes.
double measure_read_bandwidth(Device device);

// Profilers that wait for the program (ncu --profile-from-start off, nsys --capture-range=cudaProfilerApi) look
// at what is between these.
void begin_profile();
void end_profile();

// Memory for Buffer. Throws Error (failed) when there is not enough.
void* allocate(Device device, int64_t bytes);
void release(Device device, void* data);
// Host memory that copies run from and to without an intermediate one.
void* allocate_pinned(int64_t bytes);
void release_pinned(void* data);

// Recorded work that is started as one. It keeps the addresses it was recorded with.
class Graph {
 public:
  explicit Graph(void* native) : native_(native) {}
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void* native() const { return native_; }

 private:
  void* native_;
};

class Queue;

// A point in a queue's work.
class Event {
 public:
  explicit Event(Device device);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(Queue& queue);  // behind what the queue has been given
  void wait();                // until the queue has come to it; errors of the work before surface here

 private:
  const Device device_;
  void* native_ = nullptr;
};

// Work of one device, done in the order it was given. Belongs to one thread at a time. Errors of earlier work
// surface in wait() as Error (failed).
//
// A planning queue launches nothing and owns nothing: ops go through all their choices and only the scratch
// that they ask for is recorded.
class Queue {
 public:
  enum class Mode : uint8_t { run, plan };
  Queue(Device device, Mode mode, int64_t scratch_bytes = 0);
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  Device device() const { return device_; }
  bool planning() const { return mode_ == Mode::plan; }
  // The vendor's stream, for giving work: what was deferred is started first.
  void* native();
  int processors() const { return processors_; }
  int capability() const { return capability_; }
  // Makes the device current on the calling thread; before work is given from a thread.
  void activate() const;

  // Work that was given but not started, since the next kernel may do it as well: a norm by the product that
  // reads it, a product by the norm that adds it up. It is started before anything else that is given, unless
  // it was taken over.
  struct Deferred {
    virtual ~Deferred() = default;
    virtual void start(Queue& queue) = 0;
  };
  void defer(std::unique_ptr<Deferred> work);
  Deferred* deferred() const { return deferred_.get(); }
  std::unique_ptr<Deferred> take_over() { return std::move(deferred_); }

  // Memory of one op, at the same address every time; the next op overwrites it.
  void* scratch(int64_t bytes);
  int64_t scratch_peak() const { return scratch_peak_; }
  // kCounters zeros. A kernel that counts leaves them at zero.
  int32_t* counters() const { return counters_; }
  static constexpr int64_t kCounters = 1 << 16;

  // Asynchronous; the host's memory is pinned for copies that shall overlap.
  void copy_to_device(void* to, const void* from, int64_t bytes);
  void copy_to_host(void* to, const void* from, int64_t bytes);
  void copy_on_device(void* to, const void* from, int64_t bytes);
  // Either is pinned host memory, the other the device's; for the few bytes that every step exchanges.
  void copy_pinned(void* to, const void* from, int64_t bytes);
  void zero(void* to, int64_t bytes);
  void wait();
  // Until what was started is done; what was deferred stays so. Nothing while recording.
  void settle();
  // Before each start of a kernel. The driver loads its code at the first, and may wait for all that runs on
  // the device: the queue is settled before if others may wait for that. From then on the kernel may have all
  // the shared memory of a block.
  void introduce(const void* kernel);

  // What is given between these is recorded, not done.
  void begin_recording();
  std::unique_ptr<Graph> end_recording();
  void start(const Graph& graph);

 private:
  const Device device_;
  const Mode mode_;
  bool recording_ = false;
  void* stream_ = nullptr;
  void* scratch_ = nullptr;
  int32_t* counters_ = nullptr;
  std::unique_ptr<Deferred> deferred_;
  std::unordered_set<const void*> introduced_;
  int64_t scratch_bytes_ = 0, scratch_peak_ = 0;
  int processors_ = 0, capability_ = 0, block_memory_ = 0;
};

}  // namespace atom::gpu
