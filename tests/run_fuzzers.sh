#!/usr/bin/env bash
# Builds every fuzz target (src/**/*_fuzz.cc) with clang and runs each on its seeds for a while.
# Usage: tests/run_fuzzers.sh SECONDS
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
jobs=${JOBS:-$(nproc)}
cmake -S . -B build-fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++-14 -DATOM_FUZZ=ON -DATOM_TESTS=OFF \
  -DCMAKE_BUILD_TYPE=Debug -DATOM_SANITIZE=fuzzer-no-link,address,undefined >/dev/null
targets=$(cd src && find . -name '*_fuzz.cc' -exec basename {} .cc \; | sort)
ninja -C build-fuzz -j "$jobs" $targets
for target in $targets; do
  seeds=tests/data/fuzz/${target%_fuzz}
  corpus=build-fuzz/corpus/$target
  mkdir -p "$corpus" "$seeds"
  echo "== $target, $seconds s"
  build-fuzz/$target -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -verbosity=0 -print_final_stats=0 \
    "$corpus" "$seeds"
done
