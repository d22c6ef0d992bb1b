#!/usr/bin/env bash
# Shows that compute-sanitizer finds errors of memory in a pool that passes through, and finds none in a correct program.
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

# sanitize PASS_THROUGH ERROR [OPTION...]: writes the sanitizer's output; returns its status, 3 if it found an error.
sanitize() {
  local on=$1 error=$2
  shift 2
  GPUMEM_PASS_THROUGH=$on compute-sanitizer --error-exitcode 3 "$@" "$scratch/program" "$error" >"$scratch/output" 2>&1
}

status=0
sanitize 1 none || status=$?
if [[ $status != 0 ]] && grep -qi "not supported\|unable to\|failed to initialize\|no CUDA-capable" "$scratch/output"; then
  head -5 "$scratch/output"
  echo "skipped: compute-sanitizer refuses this device (kernel $(uname -r))"
  exit 77
fi
[[ $status == 0 ]] || { cat "$scratch/output"; echo "a correct program has errors"; exit 1; }
for error in overrun after_free; do
  status=0
  sanitize 1 "$error" || status=$?
  [[ $status == 3 ]] || { cat "$scratch/output"; echo "$error was not found: status $status"; exit 1; }
  grep -m1 "Invalid __global__ write" "$scratch/output"
  grep -m1 "bytes after the nearest allocation\|is out of bounds\|use-after-free\|freed" "$scratch/output" || true
  status=0
  sanitize 0 "$error" || status=$?
  echo "$error: found with GPUMEM_PASS_THROUGH=1; without it the sanitizer ends with status $status"
done
