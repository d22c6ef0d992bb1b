#!/usr/bin/env bash
# Compiles one source file of the scheduled library with one fault and links a test with it. Succeeds if that test
# fails, names a seed, and fails again with that seed. Arguments: source folder, build folder, ninja, fault, seeds.
# Optional arguments, by default for the pool: the list of faults, the test's program, the filter of its tests, and the
# variable that replays a seed. GPUMEM_SEEDS replays the seeds before it too, if the state that they leave matters. The
# variable "none" is for tests without seeds, with the library that users have. The last argument names another library.
# If that is the simulated driver or the C library, the test itself stays as it is, and loads that with the fault.
# A further line of a fault, as GPUMEM_SEED=9, replaces the seeds. A replay of all seeds before is left out if they took
# more than 3 seconds: other faults of the program show that it works. A test without seeds that runs for 60 seconds
# has found the fault too: a lost wake-up shows in a wait that never ends. Without a fault each takes a few seconds.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source_folder=$1 build=$2 ninja=$3 fault=$4 seeds=$5
list=${6-mutants.txt} program=${7-test/pools/test_pool_property}
export GTEST_FILTER=${8-*} GTEST_FAIL_FAST=1 GPUMEM_WAIT_SECONDS=1
replay=${9-GPUMEM_SEED}
here=./test/mutants/$fault
source "$source_folder/test/mutants/make_mutant.sh"
cd "$build"
read_fault "$list" "$fault"
library=gpumem_scheduled
[[ $replay == none ]] && library=gpumem
library=${10-$library}
make_test "$here" "$library" "$program"

told=$here/told.txt
SECONDS=0
status=0
timeout --kill-after=5 60 env "${facts[5]:-GPUMEM_SEEDS=$seeds}" "${command[@]}" > "$told" 2>&1 || status=$?
if ((status == 0)); then
  echo "not found: ${facts[0]}"
  exit 1
fi
if [[ $replay == none ]]; then
  # The test ends without the fault, as it does among the other tests.
  if ((status == 124 || status == 137)); then
    echo "the test did not end: $(grep -a '^\[ RUN' "$told" | tail -1)"
    exit
  fi
  grep -m1 -E '^\[  FAILED  \]|^terminate called|^line [0-9]+: ' "$told"
  exit
fi
seed=$(sed -nE 's/.*(replay with --seed |GPUMEM_SEED=)([0-9]+).*/\2/p' "$told" | head -1)
[[ -n $seed ]] || { echo "found, but the test printed no seed:"; tail -20 "$told"; exit 1; }
if [[ $replay == GPUMEM_SEEDS ]] && ((SECONDS > 3)); then
  echo "seed $seed failed after $SECONDS s; not replayed"
  exit
fi
if timeout --kill-after=5 60 env "$replay=$seed" "$here/test" > "$here/again.txt" 2>&1; then
  echo "seed $seed failed, but passes when it is replayed with $replay"
  exit 1
fi
grep -m1 -oE "(seed $seed |GPUMEM_SEED=$seed).*" "$told"
