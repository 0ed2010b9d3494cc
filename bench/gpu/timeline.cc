// A timeline of the kernels that a program ran last, with their true overlaps: one line each for
// bench/gpu/timeline.py. Injected into the program by the CUDA driver; not part of the build:
//
//   c++ -O2 -shared -fPIC -I$CUDA/include bench/gpu/timeline.cc -o timeline.so -L$CUDA/lib64 -lcupti
//   CUDA_INJECTION64_PATH=$PWD/timeline.so TIMELINE_OUT=step.txt TIMELINE_KERNELS=500 atom bench ...
//
// Columns, by tabs: begin and duration in us, grid, threads of a block, shared bytes of a block, name.
#include <cupti.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Row {
  uint64_t begin, end;
  int grid[3] = {}, threads = 0, shared_bytes = 0;
  std::string name;
};

std::mutex mutex;
std::vector<Row> rows;

void give_buffer(uint8_t** buffer, size_t* bytes, size_t* most_records) {
  *bytes = size_t{8} << 20;
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, *bytes));
  *most_records = 0;
}

void take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  const std::lock_guard lock(mutex);
  for (CUpti_Activity* r = nullptr; cuptiActivityGetNextRecord(buffer, valid, &r) == CUPTI_SUCCESS;) {
    if (r->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto& k = *reinterpret_cast<const CUpti_ActivityKernel10*>(r);
      rows.push_back({k.start,
                      k.end,
                      {k.gridX, k.gridY, k.gridZ},
                      k.blockX * k.blockY * k.blockZ,
                      k.dynamicSharedMemory + k.staticSharedMemory,
                      k.name != nullptr ? k.name : "?"});
    } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto& c = *reinterpret_cast<const CUpti_ActivityMemcpy6*>(r);
      rows.push_back({.begin = c.start, .end = c.end, .name = "copy of " + std::to_string(c.bytes)});
    } else if (r->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto& m = *reinterpret_cast<const CUpti_ActivityMemset4*>(r);
      rows.push_back({.begin = m.start, .end = m.end, .name = "fill of " + std::to_string(m.bytes)});
    }
  }
  std::free(buffer);
}

const char* environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}

void write_timeline() {
  cuptiActivityFlushAll(1);
  const std::lock_guard lock(mutex);
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.begin < b.begin; });
  const size_t wanted = std::strtoul(environment("TIMELINE_KERNELS", "500"), nullptr, 10);
  const size_t first = rows.size() > wanted ? rows.size() - wanted : 0;
  std::FILE* out = std::fopen(environment("TIMELINE_OUT", "timeline.txt"), "w");
  if (out == nullptr) return std::perror("timeline");
  for (size_t i = first; i < rows.size(); ++i) {
    const Row& r = rows[i];
    std::fprintf(out, "%.2f\t%.2f\t%dx%dx%d\t%d\t%d\t%s\n",
                 static_cast<double>(r.begin - rows[first].begin) * 1e-3,
                 static_cast<double>(r.end - r.begin) * 1e-3, r.grid[0], r.grid[1], r.grid[2], r.threads,
                 r.shared_bytes, r.name.c_str());
  }
  std::fclose(out);
}

}  // namespace

extern "C" int InitializeInjection() {
  cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
  for (const CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
    if (cuptiActivityEnable(kind) != CUPTI_SUCCESS)
      std::fprintf(stderr, "timeline: CUPTI refuses kind %d\n", kind);
  }
  std::atexit(write_timeline);
  return 1;
}
