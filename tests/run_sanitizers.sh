#!/usr/bin/env bash
# Builds the unit tests of the layers that parse or share memory between threads under sanitizers and runs them:
# address and undefined behaviour for the parsers and kernels, threads for the communicator, the engine and the server.
# Usage: tests/run_sanitizers.sh
set -euo pipefail
cd "$(dirname "$0")/.."
jobs=${JOBS:-$(nproc)}
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
cmake -S . -B build-asan -G Ninja -DCMAKE_BUILD_TYPE=Debug -DATOM_SANITIZE=address,undefined >/dev/null
asan="text_test checkpoint_test cache_test scheduler_test runtime_test server_test"
ninja -C build-asan -j "$jobs" $asan
for test in $asan; do build-asan/$test --gtest_brief=1; done
cmake -S . -B build-tsan -G Ninja -DCMAKE_BUILD_TYPE=Debug -DATOM_SANITIZE=thread >/dev/null
tsan="comm_test engine_test server_test"
ninja -C build-tsan -j "$jobs" $tsan
for test in $tsan; do build-tsan/$test --gtest_brief=1; done
