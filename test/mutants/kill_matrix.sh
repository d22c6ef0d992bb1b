#!/usr/bin/env bash
# Finds which test programs find which planted faults: runs each program with each fault of a list. Writes one line for
# each pair to the file of results: list, fault, program, "found", "passed", "hung" or "unbuilt", seconds, and the tests
# that failed or did not end, or why nothing was built. A later run continues the file. Arguments: source folder, build
# folder, ninja, file of results, list, library of the programs as in test/mutants/CMakeLists.txt, and the programs in
# the build folder. GTEST_FILTER, GPUMEM_SEEDS and LIMIT, the most seconds of a run (60), are of the caller. With
# GTEST_FAIL_FAST=0 a program names all tests that fail, not only the first. The build must be up to date.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source_folder=$(realpath "$1") build=$2 ninja=$(realpath -s "$(command -v "$3")") results=$(realpath "$4") list=$5 library=$6
shift 6
source "$source_folder/test/mutants/make_mutant.sh"
cd "$build"
touch "$results"
here=./test/mutants/matrix.$$
trap 'rm -rf "$here" "$here.log"' EXIT
export GTEST_FAIL_FAST=${GTEST_FAIL_FAST-1} GPUMEM_WAIT_SECONDS=1

# Prints the tests of a run that failed or did not end, separated by commas; "-" if there are none.
tests_of() {
  awk 'function add(test) { if (test != "" && !(test in known)) { known[test]; list = list (list ? "," : "") test } }
    /^\[ RUN / { running = $4 }
    /^\[ +OK / { running = "" }
    /^\[  FAILED  \]/ && $4 !~ /^[0-9]+$/ { running = ""; sub(/,$/, "", $4); add($4) }
    END { add(running); print list ? list : "-" }' "$1"
}

tell() { (IFS=$'\t'; echo "$list	$fault	$program	$*") >>"$results"; }

for fault in $(grep -xE '[a-z_]+' "$source_folder/test/mutants/$list"); do
  known=no
  for program; do
    grep -qF "$list"$'\t'"$fault"$'\t'"$program"$'\t' "$results" && continue
    if [[ $known == no ]]; then
      known=yes compiled=
      rm -rf "$here" # the headers and objects of the fault before
      read_fault "$list" "$fault" >"$here.log" 2>&1 || known=failed
    fi
    if [[ $known == failed ]] || ! make_test "$here" "$library" "$program" >"$here.log" 2>&1; then
      tell unbuilt 0 "$(grep -m1 -w error "$here.log" || tail -1 "$here.log")"
      continue
    fi
    begin=$SECONDS status=0
    timeout --kill-after=5 "${LIMIT:-60}" env ${facts[5]:+"${facts[5]}"} "${command[@]}" >"$here/told.txt" 2>&1 </dev/null ||
      status=$?
    case $status in 0) found=passed ;; 124 | 137) found=hung ;; *) found=found ;; esac
    tell "$found" $((SECONDS - begin)) "$(tests_of "$here/told.txt")"
  done
done
