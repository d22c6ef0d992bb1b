#!/usr/bin/env bash
# The entry point for all jobs: sets the machine up, then builds and runs the requested job.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
folder=$PWD
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
source cmake/setup/setup.sh

usage() {
  cat <<'TEXT'
usage: bash cmake/run.sh COMMAND [ARGUMENT...]
  demo [ARGUMENT...]  build, run the demo, replay the traces of bench/traces (arguments go to the replay)
  test [ARGUMENT...]  build, run the tests, then the property tests under the sanitizers (arguments go to ctest)
  install [PREFIX]    build only the library and install it (into CMake's default, /usr/local, without PREFIX)
  lint [--check]      format the sources, tidy them; --check changes nothing and fails where it would
  gpu  [ARGUMENT...]  tests, planted faults and benchmarks on this machine's GPU, or a bundle for a machine with one
  setup               only install what is missing
Each command first looks for its tools (clang >= 19, CMake >= 3.28, Ninja >= 1.11, CUDA >= 13.0, CCCL >= 3.5.0 and the
test libraries), says what is missing, and installs that: Debian packages with apt-get, the rest into .tools/.
TEXT
}

# configure PRESET [OPTION...]: configures, from scratch if the tools have changed since the last time.
configure() {
  local fresh=()
  if [[ -f build/$1/CMakeCache.txt ]] && ! cmp -s .tools/environment "build/$1/environment"; then
    fresh=(--fresh)
  fi
  cmake --preset "$1" "${fresh[@]}" "${@:2}"
  cp .tools/environment "build/$1/environment"
}

build() {
  configure "$1"
  cmake --build --preset "$1" "${@:2}"
}

run_demo() {
  build release --target gpumem_demo gpumem-replay
  build/release/bench/gpumem_demo
  build/release/bench/gpumem-replay "$@" bench/traces/*.csv.gz
}

run_install() {
  configure install "${@/#/-DCMAKE_INSTALL_PREFIX=}"
  cmake --build --preset install
}

run_test() {
  local preset
  for preset in release asan tsan; do
    build "$preset"
    ctest --preset "$preset" --parallel "$(nproc)" "$@"
  done
}

command=${1:-help}
shift || true
case $command in
  demo)
    set_up build
    run_demo "$@"
    ;;
  test)
    set_up test
    run_test "$@"
    ;;
  install)
    set_up install
    [[ $# -eq 0 || $1 == /* ]] || set -- "$folder/$1"
    run_install "${@:1:1}"
    ;;
  lint)
    set_up lint
    build release --target gpumem
    build partitions
    bash cmake/setup/lint.sh "$@"
    ;;
  gpu)
    # A bundle needs no tools on the machine with the GPU.
    [[ ${1-} == run ]] || set_up test
    bash bench/gpu.sh "$@"
    ;;
  setup) set_up test ;;
  help | -h | --help) usage ;;
  *)
    echo "cmake/run.sh: unknown command '$command'" >&2
    usage >&2
    exit 2
    ;;
esac
