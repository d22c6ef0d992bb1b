#!/usr/bin/env bash
# Compiles the parts of refusals.cpp as the build compiles import_only.cpp, and looks for the errors that its comments
# say. A number before a text says how often it occurs. Arguments: build folder, ninja.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$1"
source=$(dirname "${BASH_SOURCE[0]}")/refusals.cpp
object=$("$2" -t targets all | sed -n 's|^\(test/static/.*/import_only.cpp.o\): .*|\1|p')
compile=$("$2" -t commands -s "$object" | tail -1)
compile="${compile%% -MD *} $(grep -oE '@[^ ]+\.modmap' <<< "$compile")"
compile+=" -Werror=unused -ferror-limit=0 -fsyntax-only -x c++ $source"
$compile -DPART=0

# expect PART ERRORS: the errors have the texts of the part.
expect() {
  local count text
  while read -r text; do
    [[ $text =~ ^([0-9]+)\ (.*) ]] && count=${BASH_REMATCH[1]} text=${BASH_REMATCH[2]} || count=1
    [[ $(grep -cF -- "$text" <<< "$2") == "$count" ]] || { echo "not $count of '$text' in:"; echo "$2"; exit 1; }
  done < <(awk -v part="$1" '/^#(el)?if|^#else/ { now = ++at - 1 } now == part && sub(/^\/\/ error: /, "")' "$source")
}
first=$($compile -DPART=1 2>&1 | grep -m1 error: || true)
expect 1 "$first"
all=$($compile -DPART=2 2>&1 | grep error: || true)
expect 2 "$all"
