#!/usr/bin/env bash
# Builds heap_device.cu and the guide's programs of heaps with nvcc alone, in C++17, and runs them, also with checks of
# frees; then the short form under compute-sanitizer. The script only compiles the form that calls CUDA's malloc and free.
# Arguments: the folder of libgpumem_c.so, the folder of the headers; `faults` to also run the test with each planted
# fault, which it must find. The script exits with 77 without nvcc, and after the builds without a GPU.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
library=$1 headers=$2 faults=${3:-}
command -v nvcc >/dev/null || { echo "skipped: there is no nvcc"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
architecture=native
ls /dev/nvidia[0-9]* >/dev/null 2>&1 || architecture=sm_90

# build SOURCE PROGRAM HEADERS [OPTION]...
build() {
  nvcc -std=c++17 -arch="$architecture" -rdc=true -lineinfo "$1" -o "$2" -I"$3" -L"$library" -lgpumem_c -lcudadevrt \
    -Xlinker -rpath="$library" "${@:4}"
}

# Prints for each fault its name, its file, the line that it changes, and the faulty line, with tabs between.
planted() {
  printf '%s\t%s\t%s\t%s\n' \
    lanes_of_two_classes_together device_heap.cuh \
    "return __match_any_sync(active, key);" "return __match_any_sync(active, key / 2);" \
    one_bit_of_a_warp device_heap.cuh \
    "auto const result = __reduce_or_sync(group, value);" "auto const result = value; static_cast<void>(group);" \
    torn_bits device_heap.cuh \
    "return __nv_atomic_fetch_and(address, value, value_of(Order), __NV_THREAD_SCOPE_DEVICE);" \
    "T const old = load<order::relaxed>(address); store<order::relaxed>(address, static_cast<T>(old \& value)); return old;"
}

# plant NAME FILE LINE FAULTY: copies the headers to a folder of that name, with the fault.
plant() {
  mkdir -p "$scratch/$1"
  cp -r "$headers/gpumem" "$scratch/$1"
  local count
  count=$(grep -cF -- "$3" "$headers/gpumem/$2") || true
  [[ $count == 1 ]] || { echo "the fault $1: its line stands $count times in $2"; exit 1; }
  sed -i "s|$(printf '%s' "$3" | sed 's/[].*^$[]/\\&/g')|$4|" "$scratch/$1/gpumem/$2"
}

builds=()
build "$here/heap_device.cu" "$scratch/heap_device" "$headers" & builds+=($!)
if [[ $architecture == native ]]; then # without a GPU the first form is enough
  build "$here/heap_device.cu" "$scratch/heap_device_checked" "$headers" -DGPUMEM_DEVICE_HEAP_CHECKS & builds+=($!)
  build "$here/heap_device.cu" "$scratch/heap_device_through" "$headers" -DGPUMEM_DEVICE_HEAP_PASS_THROUGH & builds+=($!)
  for example in heap_graph heap_table; do
    build "$here/../examples/$example.cu" "$scratch/$example" "$headers" & builds+=($!)
  done
fi
if [[ $faults == faults ]]; then
  while IFS=$'\t' read -r name file line faulty; do
    plant "$name" "$file" "$line" "$faulty"
    build "$here/heap_device.cu" "$scratch/$name/heap_device" "$scratch/$name" & builds+=($!)
  done < <(planted)
fi
for each in "${builds[@]}"; do wait "$each"; done
[[ $architecture == native ]] || { echo "skipped: there is no GPU"; exit 77; }

timeout 200 "$scratch/heap_device"
timeout 200 "$scratch/heap_device_checked"
"$scratch/heap_graph" | tee "$scratch/output"
grep -q "^1000000 edges, 0 failed" "$scratch/output" && grep -q "^0 edges after the end" "$scratch/output"
"$scratch/heap_table" | tee "$scratch/output"
grep -q "^8000000 keys found" "$scratch/output"

if command -v compute-sanitizer >/dev/null; then
  for tool in memcheck racecheck synccheck; do
    status=0
    timeout 200 compute-sanitizer --tool "$tool" --error-exitcode 3 "$scratch/heap_device" short >"$scratch/output" 2>&1 || status=$?
    if [[ $status != 0 ]] && grep -qi "not supported\|unable to\|failed to initialize" "$scratch/output"; then
      echo "compute-sanitizer refuses this device"
      break
    fi
    [[ $status == 0 ]] || { tail -40 "$scratch/output"; echo "$tool: status $status"; exit 1; }
    echo "$tool finds no error"
  done
fi

if [[ $faults == faults ]]; then
  while IFS=$'\t' read -r name _; do
    status=0
    timeout 60 "$scratch/$name/heap_device" >"$scratch/output" 2>&1 || status=$?
    # A crash does not count.
    grep -q "check failed" "$scratch/output" || { echo "$name was not found: status $status"; exit 1; }
    echo "$name was found: $(grep -m1 "check failed" "$scratch/output")"
  done < <(planted)
fi
