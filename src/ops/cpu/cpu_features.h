// What the processor and the operating system allow, asked once at run time.
#pragma once

namespace atom {

// Each of avx2, avx512 and amx_* also says that a file with that suffix may run: it stands for every
// extension such files are compiled with.
struct CpuFeatures {
  bool avx2 = false;  // with fma, f16c and bmi2
  bool fma = false;
  bool f16c = false;
  bool avx512 = false;  // f, bw, vl, dq, vnni, vbmi and bf16, and all of avx2
  bool avx512_vnni = false;
  bool avx512_bf16 = false;
  bool avx512_fp16 = false;
  bool amx_bf16 = false;  // with gfni; the system granted the tile state; all of avx512
  bool amx_int8 = false;
};

// The environment variable ATOM_CPU_ISA=baseline|avx2|avx512|amx hides what lies above it; any other value
// throws Error.
const CpuFeatures& cpu_features();

}  // namespace atom
