#!/usr/bin/env bash
# Fails if two archives of the library do not define the same symbols: the library from partitions, and the library from
# one generated interface. In the second a call may find another overload, since all partitions are visible there.
# Initializers of partitions, and what the optimizer inlined or made a constant in one of them, are left out: these are
# the weak and local symbols.
# SPDX-License-Identifier: Apache-2.0
# usage: compare_forms.sh ARCHIVE ARCHIVE
set -euo pipefail

symbols() {
  nm --defined-only --extern-only --no-sort "$1" 2>/dev/null | awk '$2 ~ /^[TDBR]$/ && $3 !~ /^_ZGIW6gpumem/ { print $3 }' |
    sort -u
}

told=$(diff <(symbols "$1") <(symbols "$2")) || {
  echo "only in one of the archives $1 (<) and $2 (>):"
  c++filt <<<"$told"
  exit 1
}
