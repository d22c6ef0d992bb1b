#!/usr/bin/env bash
# Compiles one source file of the scheduled library with one fault, links the property test with it, and succeeds if
# that test fails, names a seed, and fails again with that seed alone. Arguments: source folder, build folder, ninja, fault, seeds.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source_folder=$1 build=$2 ninja=$3 fault=$4 seeds=$5
here=./test/mutants/$fault # relative, since what is evaluated below must hold no blank
cd "$build"
mkdir -p "$here"

mapfile -t facts < <(awk -v name="$fault" '$0 == name { on = 1 } on && $0 == "" { exit } on' \
  "$source_folder/test/mutants/mutants.txt")
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
program=test/pools/test_pool_property
link=$("$ninja" -t commands -s "$program" | tail -1)
link=${link%%&& cd *}
link=${link/-o $program/$here/mutant.o -o $here/test}
eval "$link"

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
