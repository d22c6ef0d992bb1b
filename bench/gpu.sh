#!/usr/bin/env bash
# Runs tests, planted faults and benchmarks on a GPU and prints one page. Builds a bundle of static programs. Runs it
# here, or says how to run it on another machine, which needs a GPU and its driver but no toolchain.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/gpu bundle=$root/build/gpu/bundle

usage() {
  cat <<'TEXT'
usage: bash cmake/run.sh gpu [bundle|run|all] [REPLAY ARGUMENT...]
  bundle  build all programs into build/gpu/bundle, which can be copied to another machine. They are static except for
          the driver and libc; the C library shares the C++ runtime with PyTorch
  run     run the bundle and print the page: tests labelled gpu, planted faults, PyTorch, demo, waits, allocators, and
          traces at full speed, with work in flight, by several threads and at their recorded pace; needs a GPU
  all     both (the default); without a GPU only the bundle, and how to run it
TEXT
}

has_device() { ls /dev/nvidia[0-9]* >/dev/null 2>&1; }

# Scripts that look for neighbouring files find them in the same layout as in the source tree.
make_bundle() {
  local ninja
  cmake --preset gpu
  cmake --build --preset gpu
  ctest --test-dir "$build" --output-on-failure --no-tests=error -R '^c\.runtime\.gpumem_c$'
  rm -rf "$bundle"
  mkdir -p "$bundle"/{traces,test/device,modules/bridge/python}
  cp "$build"/test/device/test_{device,thrust_device} \
    "$build"/bench/{gpumem_demo,gpumem-replay,gpumem-completion-bench,gpumem-growth-bench,gpumem-heap-bench,gpumem-bench} "$root"/bench/gpu_page.sh "$root"/test/mutants/run_gpu_mutants.sh "$bundle"
  cp -L "$build"/src/c/libgpumem_c.so "$bundle/libgpumem_c.so.0" # the name that gpumem-bench looks for
  ln -s libgpumem_c.so.0 "$bundle/libgpumem_c.so"
  cp "$root"/bench/traces/*.csv.gz "$bundle/traces"
  cp "$root"/test/device/torch_*.py "$bundle/test/device"
  cp "$root"/modules/bridge/python/gpumem_torch.py "$bundle/modules/bridge/python"
  cp_peers
  ninja=$(sed -n 's/^CMAKE_MAKE_PROGRAM:[^=]*=//p' "$build/CMakeCache.txt")
  bash "$root/test/mutants/make_gpu_mutants.sh" "$root" "$build" "$ninja" "$bundle/mutants"
}

# Copies what gpumem-bench links or loads: Google Benchmark, RMM if it was built, and the sources from which PyTorch's
# peer is built on the machine with the GPU.
cp_peers() {
  cp -L "$(ldd "$build/bench/gpumem-bench" | awk '/libbenchmark/ { print $3 }')" "$bundle"
  cp "$root"/bench/peers/{peer.h,torch.cpp,torch.sh} "$bundle"
  if [[ -f $build/bench/libgpumem_peer_rmm.so ]]; then
    awk -F= '/^GPUMEM_(RMM|RAPIDS_LOGGER):/ { print $2 }' "$build/CMakeCache.txt" | xargs -d '\n' cp -Lt "$bundle"
    cp "$build/bench/libgpumem_peer_rmm.so" "$bundle"
  fi
}

say_how() {
  cat <<TEXT
This machine has no NVIDIA device. The bundle is in
  $bundle
Copy the folder to a machine with an NVIDIA device and run there:
  bash bundle/gpu_page.sh [REPLAY ARGUMENT...]
TEXT
}

command=${1:-all}
shift || true
case $command in
  bundle) make_bundle ;;
  run) exec bash "$bundle/gpu_page.sh" "$@" ;;
  all)
    make_bundle
    if has_device; then
      exec bash "$bundle/gpu_page.sh" "$@"
    fi
    say_how
    ;;
  *)
    usage >&2
    exit 2
    ;;
esac
