#!/usr/bin/env bash
# Runs every program that make_gpu_mutants.sh built, on a machine with a GPU: each has to be found by its test, every
# time. Fails where one survives. Arguments: the folder of the programs, how often (3).
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
folder=$1 times=${2:-3}
survivors=0 all=0
for filter in "$folder"/*.filter; do
  program=${filter%.filter} found=0 all=$((all + 1))
  for ((i = 0; i < times; ++i)); do
    told=$(timeout 60 "$program" --gtest_filter="$(<"$filter")" 2>&1) && continue
    # Found by what the test saw, not by a crash or by a test that was not there.
    [[ $told == *"FAILED TEST"* ]] && found=$((found + 1))
  done
  printf '%-32s found %d of %d\n' "${program##*/}" "$found" "$times"
  ((found == times)) || survivors=$((survivors + 1))
done
((all > 0)) || { echo "no programs in $folder"; exit 1; }
((survivors == 0)) || { echo "$survivors of $all were not found every time"; exit 1; }
