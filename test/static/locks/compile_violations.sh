#!/usr/bin/env bash
# Compiles the lines of violations.cpp as the build compiles a source of the library: line 0 compiles, no other does.
# Arguments: build folder, ninja.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$1"
source=$(dirname "${BASH_SOURCE[0]}")/violations.cpp
object=$("$2" -t targets all | grep -oE '^modules/CMakeFiles/gpumem\.dir/.*core[./][a-z_]+\.cpp\.o' | sed -n 1p)
if [[ -f modules/gpumem/gpumem.cppm ]]; then # the module is built from one interface
  mkdir -p test/static/violations
  python3 "${source%/test/*}/cmake/one_interface.py" <(echo "violations.cpp: $source") test/static/violations
  source=test/static/violations/violations.cpp
fi
compile=$("$2" -t commands -s "$object" | tail -1)
compile="${compile%% -MD *} -Werror -fsyntax-only -x c++ $source"
$compile -DLINE=0
for line in $(seq "$(grep -oE 'LINE [!=]= [0-9]+' "$source" | grep -oE '[0-9]+' | sort -n | tail -1)"); do
  told=$($compile "-DLINE=$line" 2>&1) && { echo "line $line compiles"; exit 1; }
  grep -q "Wthread-safety-" <<< "$told" || { echo "line $line fails for another reason:"; echo "$told"; exit 1; }
done
