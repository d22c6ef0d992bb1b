#!/usr/bin/env bash
# Compiles one source file of the scheduled library with one fault, links a test with it, and succeeds if that test
# fails, names a seed, and fails again with that seed. Arguments: source folder, build folder, ninja, fault, seeds;
# the list of faults, the test's program, which of its tests, and the variable that replays a seed (GPUMEM_SEEDS: with
# those before it, whose waits leave the library's thread as it is), where they are not the pool's.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source_folder=$1 build=$2 ninja=$3 fault=$4 seeds=$5
list=${6-mutants.txt} program=${7-test/pools/test_pool_property}
export GTEST_FILTER=${8-*}
replay=${9-GPUMEM_SEED}
here=./test/mutants/$fault # relative, since what is evaluated below must hold no blank
cd "$build"
mkdir -p "$here"

mapfile -t facts < <(awk -v name="$fault" '$0 == name { on = 1 } on && $0 == "" { exit } on' \
  "$source_folder/test/mutants/$list")
[[ ${#facts[@]} == 5 ]] || { echo "no such fault, or not of five lines: $fault"; exit 1; }
original=$source_folder/src/${facts[2]} right=${facts[3]} wrong=${facts[4]}
mutant=$here/$(basename "$original")
[[ $(grep -cxF -- "$right" "$original") == 1 ]] || { echo "not exactly once in $original: $right"; exit 1; }
right=$right wrong=$wrong awk '$0 == ENVIRON["right"] { $0 = ENVIRON["wrong"] } { print }' "$original" > "$mutant"

# The compiler is called as the build calls it, but for the files that it writes.
object=modules/CMakeFiles/gpumem_scheduled.dir/__/src/${facts[2]}.o
sed "s|-fmodule-output=[^ ]*|-fmodule-output=$here/mutant.pcm|" "$object.modmap" > "$here/modmap"
compile=$("$ninja" -t commands -s "$object" | tail -1)
compile=${compile//@$object.modmap/@$here/modmap}
compile=${compile//-o $object/-o $here/mutant.o}
compile=${compile//-MF $object.d/-MF $here/mutant.d}
for path in "$original" "'$original'" "\"$original\""; do # as the build quotes it
  compile=${compile//-c "$path"/-c $mutant}
done
[[ $compile == *"-c $mutant"* ]] || { echo "the build does not compile $original"; exit 1; }
compile=${compile// -Werror/} # what a fault leaves unused
eval "$compile"

# An object named before the library stands for the library's own.
link=$("$ninja" -t commands -s "$program" | tail -1)
link=${link%%&& cd *}
link=${link/-o $program/$here/mutant.o -o $here/test}
eval "$link"

told=$here/told.txt
if GPUMEM_SEEDS=$seeds "$here/test" > "$told" 2>&1; then
  echo "not caught: ${facts[1]}"
  exit 1
fi
seed=$(sed -nE 's/.*(replay with --seed |GPUMEM_SEED=)([0-9]+).*/\2/p' "$told" | head -1)
[[ -n $seed ]] || { echo "caught, but no seed was named:"; tail -20 "$told"; exit 1; }
if env "$replay=$seed" "$here/test" > "$here/again.txt" 2>&1; then
  echo "seed $seed failed, and passes when it is replayed alone"
  exit 1
fi
grep -m1 -oE "(seed $seed |GPUMEM_SEED=$seed).*" "$told"
