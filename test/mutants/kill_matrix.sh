#!/usr/bin/env bash
# Finds which test programs find which planted faults: runs each program with each fault of a list. Writes one line for
# each pair to the file of results: list, fault, program, "found", "passed", "hung" or "unbuilt", seconds, and the first
# failed test. A later run continues the file. Arguments: source folder, build folder, ninja, file of results, list,
# library of the programs (gpumem or gpumem_scheduled), and the programs in the build folder. GTEST_FILTER, GPUMEM_SEEDS
# and LIMIT, the most seconds of a run (60), are of the caller. The build must be up to date.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source_folder=$1 build=$2 ninja=$3 results=$(realpath "$4") list=$5 library=$6
shift 6
source "$source_folder/test/mutants/make_mutant.sh"
cd "$build"
touch "$results"
here=./test/mutants/matrix.$$
trap 'rm -rf "$here" "$here.log"' EXIT
export GTEST_FAIL_FAST=1 GPUMEM_WAIT_SECONDS=1

tell() { (IFS=$'\t'; echo "$list	$fault	$program	$*") >>"$results"; }

for fault in $(awk -v RS= '$1 != "#" { print $1 }' "$source_folder/test/mutants/$list"); do
  built=no
  for program; do
    grep -qF "$list"$'\t'"$fault"$'\t'"$program"$'\t' "$results" && continue
    if [[ $built == no ]]; then
      built=yes
      { read_fault "$list" "$fault" && compile_mutant "$here" "$library"; } >"$here.log" 2>&1 || built=failed
    fi
    if [[ $built == failed ]] || ! link_mutant "$here" "$program" >"$here.log" 2>&1; then
      tell unbuilt 0 -
      continue
    fi
    begin=$SECONDS status=0
    timeout "${LIMIT:-60}" "$here/test" >"$here/told.txt" 2>&1 </dev/null || status=$?
    case $status in 0) found=passed ;; 124) found=hung ;; *) found=found ;; esac
    tell "$found" $((SECONDS - begin)) "$(sed -n 's/^\[  FAILED  \] \([^ ,]*\).*/\1/p' "$here/told.txt" | head -1 | grep . || echo -)"
  done
done
