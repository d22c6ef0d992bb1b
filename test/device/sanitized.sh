#!/usr/bin/env bash
# Shows that compute-sanitizer finds errors of memory in pools that pass through, and finds none in a correct program.
# Arguments: the folder of libgpumem_c.so, the folder of the headers. Needs nvcc, compute-sanitizer and a GPU; exits with
# 77 where one of them is missing or the sanitizer refuses the device.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
library=$1 headers=$2
for tool in nvcc compute-sanitizer; do
  command -v "$tool" >/dev/null || { echo "skipped: there is no $tool"; exit 77; }
done
ls /dev/nvidia[0-9]* >/dev/null 2>&1 || { echo "skipped: there is no GPU"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
nvcc -arch=native -o "$scratch/program" "$here/sanitized.cu" -I"$headers" -L"$library" -lgpumem_c \
  -Xlinker -rpath="$library"

# sanitize OPTIONS ERROR: writes the sanitizer's output; returns its status, 3 if it found an error.
sanitize() {
  compute-sanitizer --track-stream-ordered-races all --error-exitcode 3 \
    "$scratch/program" "$2" "$1" >"$scratch/output" 2>&1
}

# expect_found NAME OPTIONS ERROR...: a correct program has no error, and the sanitizer finds each error.
expect_found() {
  local name=$1 options=$2 error status=0
  shift 2
  sanitize "$options" none || status=$?
  [[ $status == 0 ]] || { cat "$scratch/output"; echo "$name: a correct program has errors"; exit 1; }
  for error in "$@"; do
    status=0
    sanitize "$options" "$error" || status=$?
    [[ $status == 3 ]] || { cat "$scratch/output"; echo "$name: $error was not found: status $status"; exit 1; }
    grep -m1 "Invalid __global__ write\|race" "$scratch/output"
    grep -m1 "bytes after the nearest allocation\|is out of bounds\|use-after-free\|freed" "$scratch/output" || true
    echo "$name: $error was found"
  done
}

export GPUMEM_PASS_THROUGH=1
status=0
sanitize limit=1GiB none || status=$?
if [[ $status != 0 ]] && grep -qi "not supported\|unable to\|failed to initialize\|no CUDA-capable" "$scratch/output"; then
  head -5 "$scratch/output"
  echo "skipped: compute-sanitizer refuses this device (kernel $(uname -r))"
  exit 77
fi
expect_found "a pool" limit=1GiB overrun after_free unordered
expect_found "a pool over chunks" limit=1GiB,pages=off overrun after_free unordered
expect_found "a pool over a driver pool" "pool(async)" overrun after_free unordered
# The driver frees these in no stream's order.
expect_found "a pool over managed memory" "pool(managed)" overrun after_free
expect_found "a pool over pinned memory" "pool(pinned)" overrun after_free

# Tools see nothing of blocks that the pool cuts off pages and driver pools, and no error either.
export GPUMEM_PASS_THROUGH=0
for options in limit=1GiB "pool(async)"; do
  status=0
  sanitize "$options" none || status=$?
  [[ $status == 0 ]] || { cat "$scratch/output"; echo "$options: a correct program has errors"; exit 1; }
  status=0
  sanitize "$options" overrun || status=$?
  echo "$options: an overrun ends with status $status"
done
