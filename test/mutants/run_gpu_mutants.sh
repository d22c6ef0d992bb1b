#!/usr/bin/env bash
# Runs every program that make_gpu_mutants.sh built, on a machine with a GPU: its test must find each fault in every
# run. Fails if a fault is not found. Arguments: the folder of the programs, the number of runs (3).
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
folder=$1 times=${2:-3}
survivors=0 all=0
for filter in "$folder"/*.filter; do
  program=${filter%.filter} found=0 all=$((all + 1))
  for ((i = 0; i < times; ++i)); do
    told=$(timeout 60 "$program" --gtest_filter="$(<"$filter")" 2>&1) && continue
    # The test itself must fail: a crash or a missing test does not count.
    [[ $told == *"FAILED TEST"* ]] && found=$((found + 1))
  done
  printf '%-32s found %d of %d\n' "${program##*/}" "$found" "$times"
  ((found == times)) || survivors=$((survivors + 1))
done
((all > 0)) || { echo "no programs in $folder"; exit 1; }
((survivors == 0)) || { echo "$survivors of $all faults were not found in every run"; exit 1; }
