#!/usr/bin/env bash
# Compiles the lines of hidden_names.cpp as the build compiles import_only.cpp: line 0 compiles, no other does.
# Arguments: build folder, ninja.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$1"
source=$(dirname "${BASH_SOURCE[0]}")/hidden_names.cpp
object=$("$2" -t targets all | sed -n 's|^\(test/static/.*/import_only.cpp.o\): .*|\1|p')
compile=$("$2" -t commands -s "$object" | tail -1)
compile="${compile%% -MD *} $(grep -oE '@[^ ]+\.modmap' <<< "$compile") -fsyntax-only -x c++ $source"
$compile -DLINE=0
for line in $(seq "$(grep -c '^#elif' "$source")"); do
  told=$($compile "-DLINE=$line" 2>&1) && { echo "line $line compiles"; exit 1; }
  grep -qE "error: (no type named|unknown type name|no member named)|must be (declared|imported)" <<< "$told" ||
    { echo "line $line fails for another reason:"; echo "$told"; exit 1; }
done
