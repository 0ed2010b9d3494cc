// Stream: where ops run. On the CPU it is the rank's thread team, on a GPU a queue of work.
#pragma once
#include "base/thread_pool.h"
#include "tensor/gpu.h"
#include "tensor/tensor.h"

namespace atom {

class Stream {
 public:
  explicit Stream(ThreadPool& pool) : pool_(&pool) {}
  explicit Stream(gpu::Queue& queue) : device_(queue.device()), queue_(&queue) {}
  Device device() const { return device_; }
  ThreadPool& pool() const { return *pool_; }    // on the CPU
  gpu::Queue& queue() const { return *queue_; }  // on a GPU

 private:
  Device device_;
  ThreadPool* pool_ = nullptr;
  gpu::Queue* queue_ = nullptr;
};

}  // namespace atom
