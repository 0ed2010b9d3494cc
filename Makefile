# atom: the two commands a newcomer needs are `make demo` and `make test`; `make help` lists the rest.
BUILD ?= build
JOBS ?= $(shell nproc)
CMAKE_FLAGS ?=

.PHONY: all help deps demo gpu check test fmt tidy bench asan tsan sanitize fuzz clean

all: $(BUILD)/build.ninja
	ninja -C $(BUILD) -j $(JOBS)

help:
	@echo 'make          build the release program, build/atom (needs make deps once)'
	@echo 'make deps     install the packages that building and testing need (Debian, asks for root)'
	@echo 'make demo     deps, build, fetch the small demo model, answer a prompt'
	@echo 'make gpu      build build-gpu/atom with the CUDA backend (needs nvcc 12.3 or later)'
	@echo 'make check    unit tests only, about a minute'
	@echo 'make test     deps, build, every test that needs no GPU'
	@echo 'make fmt      format the sources;  make tidy: static analysis'
	@echo 'make bench    kernel benchmarks'
	@echo 'make asan     unit tests under address and undefined-behaviour sanitizers;  make tsan: thread sanitizer'
	@echo 'make sanitize the parsers, caches and threads under the sanitizers that matter to each'
	@echo 'make fuzz     build the fuzz targets and run each for FUZZ_SECONDS (default 60)'

$(BUILD)/build.ninja: CMakeLists.txt cmake/AtomLibrary.cmake
	cmake -S . -B $(BUILD) -G Ninja $(CMAKE_FLAGS)

deps:
	tools/install_packages.sh

demo: deps all
	tools/fetch_demo_model.sh
	$(BUILD)/atom generate --prompt "The three primary colours are" --max-tokens 48

gpu:
	cmake -S . -B build-gpu -G Ninja -DATOM_CUDA=ON $(CMAKE_FLAGS)
	ninja -C build-gpu -j $(JOBS)

check: all
	ctest --test-dir $(BUILD) --output-on-failure -LE slow

test: deps all
	tools/fetch_demo_model.sh >/dev/null
	tools/test_venv.sh $(BUILD)/venv >/dev/null || echo 'make test: no environment for the client and browser tests; they are skipped'
	ctest --test-dir $(BUILD) --output-on-failure
	tests/run_fuzzers.sh 5

fmt:
	find src bench -name '*.h' -o -name '*.cc' -o -name '*.cu' | xargs clang-format -i

tidy: $(BUILD)/build.ninja
	find src -name '*.cc' ! -name '*_test.cc' ! -name '*_fuzz.cc' | xargs clang-tidy -p $(BUILD) --quiet

bench: all
	for b in $(BUILD)/*_bench; do $$b; done

asan:
	cmake -S . -B build-asan -G Ninja -DCMAKE_BUILD_TYPE=Debug -DATOM_SANITIZE=address,undefined
	ninja -C build-asan -j $(JOBS)
	ctest --test-dir build-asan --output-on-failure

tsan:
	cmake -S . -B build-tsan -G Ninja -DCMAKE_BUILD_TYPE=Debug -DATOM_SANITIZE=thread
	ninja -C build-tsan -j $(JOBS)
	ctest --test-dir build-tsan --output-on-failure

sanitize:
	tests/run_sanitizers.sh

FUZZ_SECONDS ?= 60
fuzz:
	tests/run_fuzzers.sh $(FUZZ_SECONDS)

clean:
	rm -rf $(BUILD) build-gpu build-asan build-tsan build-fuzz
