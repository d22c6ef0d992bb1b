#!/usr/bin/env bash
# Compiles the lines of refusals.cpp as the build compiles import_only.cpp: line 0 compiles. Each other line fails, and
# the first error is the text behind its condition. Arguments: build folder, ninja.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$1"
source=$(dirname "${BASH_SOURCE[0]}")/refusals.cpp
object=$("$2" -t targets all | sed -n 's|^\(test/static/.*/import_only.cpp.o\): .*|\1|p')
compile=$("$2" -t commands -s "$object" | tail -1)
compile="${compile%% -MD *} $(grep -oE '@[^ ]+\.modmap' <<< "$compile") -Werror=unused -fsyntax-only -x c++ $source"
$compile -DLINE=0
while IFS='|' read -r line texts; do
  told=$($compile "-DLINE=$line" 2>&1) && { echo "line $line compiles"; exit 1; }
  first=$(grep -m1 'error:' <<< "$told")
  grep -qF "${texts//|/$'\n'}" <<< "$first" || { echo "line $line fails for another reason:"; echo "$told"; exit 1; }
done < <(sed -n 's|^#elif LINE == \([0-9]*\) *// |\1\||p' "$source")
