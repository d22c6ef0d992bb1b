#!/usr/bin/env bash
# Compiles one source file of the scheduled library with one fault, links the property test with it, and succeeds if
# that test fails, names a seed, and fails again with that seed alone. Arguments: source folder, build folder, ninja, fault, seeds.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source_folder=$1 build=$2 ninja=$3 fault=$4 seeds=$5
here=./test/mutants/$fault
source "$source_folder/test/mutants/make_mutant.sh"
cd "$build"
read_fault "$source_folder/test/mutants/mutants.txt" "$fault" 5
make_mutant "$here" gpumem_scheduled test/pools/test_pool_property

told=$here/told.txt
if "$here/test" --seeds "$seeds" > "$told" 2>&1; then
  echo "not caught: ${facts[1]}"
  exit 1
fi
seed=$(sed -n 's/.*replay with --seed \([0-9]*\).*/\1/p' "$told" | head -1)
[[ -n $seed ]] || { echo "caught, but no seed was named:"; tail -20 "$told"; exit 1; }
if "$here/test" --seed "$seed" > "$here/again.txt" 2>&1; then
  echo "seed $seed failed, and passes when it is replayed alone"
  exit 1
fi
grep -m1 -o "seed $seed .*" "$told"
