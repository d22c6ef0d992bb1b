#!/usr/bin/env bash
# The tests and the replay on a GPU, on one page. Builds and runs here; or builds a bundle of static programs here
# (`bundle`) and runs it on another machine that has a GPU but no toolchain (`run`).
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bundle=$root/build/gpu/bundle

usage() {
  cat <<'TEXT'
usage: bash cmake/run.sh gpu [bundle|run|all] [REPLAY ARGUMENT...]
  bundle  build the programs, static but for the driver and libc, into build/gpu/bundle
  run     run them: the tests labelled gpu, the demo, the waits, the replay of bench/traces; needs a GPU, no compiler
  all     both (the default)
TEXT
}

make_bundle() {
  cmake --preset gpu
  cmake --build --preset gpu
  mkdir -p "$bundle"
  cp "$root"/build/gpu/test/device/test_* "$root"/build/gpu/bench/gpumem_demo "$root"/build/gpu/bench/gpumem-replay \
    "$root"/build/gpu/bench/gpumem-completion-bench "$bundle"
  rm -f "$bundle"/*.cmake
}

run_tests() {
  local program failed=0
  for program in "$bundle"/test_*; do
    echo "-- $(basename "$program")"
    "$program" --gtest_brief=1 || failed=1
  done
  return "$failed"
}

run_bundle() {
  if ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
    echo "bench/gpu.sh: this machine has no NVIDIA device" >&2
    exit 1
  fi
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || true
  local failed=0
  run_tests || failed=1
  echo "-- demo"
  "$bundle/gpumem_demo" || failed=1
  echo "-- completion"
  "$bundle/gpumem-completion-bench" --device cuda || failed=1
  echo "-- replay"
  "$bundle/gpumem-replay" --device cuda "$@" "$root"/bench/traces/*.csv.gz || failed=1
  return "$failed"
}

command=${1:-all}
shift || true
case $command in
  bundle) make_bundle ;;
  run) run_bundle "$@" ;;
  all)
    make_bundle
    run_bundle "$@"
    ;;
  *)
    usage >&2
    exit 2
    ;;
esac
