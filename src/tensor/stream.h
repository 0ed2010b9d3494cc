// Stream: where ops run. On the CPU it is the rank's thread team; a GPU adds its queue here.
#pragma once
#include "base/thread_pool.h"
#include "tensor/tensor.h"

namespace atom {

class Stream {
 public:
  explicit Stream(ThreadPool& pool) : pool_(&pool) {}
  Device device() const { return device_; }
  ThreadPool& pool() const { return *pool_; }

 private:
  Device device_;
  ThreadPool* pool_;
};

}  // namespace atom
