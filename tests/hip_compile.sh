#!/bin/sh
# Compiles the vendor-neutral kernels for AMD GPUs, and what starts them: nothing is linked or run. Needs clang 19 and HIP's
# headers (Debian: clang-19 libamdhip64-dev, 70 MB to download); reported as skipped (77) without them.
#   tests/hip_compile.sh [gfx942 (what it takes by itself) gfx1100 ...]
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
compiler=$(command -v clang++-19) || { echo "skipped: no clang++-19"; exit 77; }
[ -f /usr/include/hip/hip_runtime.h ] || { echo "skipped: no HIP headers"; exit 77; }
[ $# -gt 0 ] || set -- gfx942
failed=0
for source in "$root"/src/ops/gpu/*.cc "$root"/src/comm/gpu/*.cc "$root"/src/tensor/gpu/*.cc; do
  case $source in *_test.cc | *_bench.cc | *_stub.cc) continue ;; esac
  if ! "$compiler" -fsyntax-only -D__HIP_PLATFORM_AMD__ -std=c++20 -w -I"$root/src" "$source"; then
    echo "$source does not compile"
    failed=1
  fi
done
for target in "$@"; do
  case $target in gfx9*) warp=64 ;; *) warp=32 ;; esac
  for source in "$root"/src/ops/gpu/*.cu "$root"/src/comm/gpu/*.cu "$root"/src/tensor/gpu/*.cu; do
    if ! "$compiler" -x hip --rocm-path=/usr -nogpulib --cuda-device-only --offload-arch="$target" -S -o /dev/null \
      -D__HIP_PLATFORM_AMD__ -DATOM_HIP_WARP="$warp" -std=c++20 -O1 -w -I"$root/src" "$source"; then
      echo "$target: $source does not compile"
      failed=1
    fi
  done
done
[ $failed = 0 ] && echo "compiled for $*"
exit $failed
