#include "ops/cpu/cpu_features.h"

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace atom {
namespace {

enum Level { kBaseline, kAvx2, kAvx512, kAmx };

Level level_from_environment() {
  const char* env = std::getenv("ATOM_CPU_ISA");
  const std::string_view text = env == nullptr ? "amx" : env;
  if (text == "baseline") return kBaseline;
  if (text == "avx2") return kAvx2;
  if (text == "avx512") return kAvx512;
  if (text == "amx") return kAmx;
  throw invalid("ATOM_CPU_ISA={}: use baseline, avx2, avx512 or amx", text);
}

#if defined(__x86_64__)

bool bit(uint32_t word, int index) { return word >> index & 1; }

// State components the system saves on a task switch.
uint64_t enabled_state() {
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return static_cast<uint64_t>(high) << 32 | low;
}

// Tile data is large, so Linux gives it only to processes that ask.
bool request_tiles() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

CpuFeatures detect(Level level) {
  CpuFeatures f;
  uint32_t a, b, c, d, b7, c7, d7, a71 = 0;
  if (level == kBaseline || !__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27)) return f;
  const uint32_t c1 = c;
  if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return f;
  if (a >= 1) __get_cpuid_count(7, 1, &a71, &b, &c, &d);
  const uint64_t state = enabled_state();

  if ((state & 0x6) != 0x6 || !bit(c1, 28)) return f;
  f.fma = bit(c1, 12);
  f.f16c = bit(c1, 29);
  f.avx2 = f.fma && f.f16c && bit(b7, 5) && bit(b7, 8);
  if (level == kAvx2 || !f.avx2 || (state & 0xE0) != 0xE0) return f;
  f.avx512_vnni = bit(c7, 11);
  f.avx512_bf16 = bit(a71, 5);
  f.avx512_fp16 = bit(d7, 23);
  f.avx512 = bit(b7, 16) && bit(b7, 17) && bit(b7, 30) && bit(b7, 31) && bit(c7, 1) && f.avx512_vnni &&
             f.avx512_bf16;
  if (level == kAvx512 || !f.avx512 || (state & 0x60000) != 0x60000) return f;
  if (!bit(d7, 24) || !bit(c7, 8) || !request_tiles()) return f;
  f.amx_bf16 = bit(d7, 22) && bit(d7, 25);
  f.amx_int8 = f.amx_bf16;
  return f;
}

#else

CpuFeatures detect(Level) { return {}; }

#endif

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect(level_from_environment());
  return features;
}

}  // namespace atom
