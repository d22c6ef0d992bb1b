#!/usr/bin/env bash
# Makes the mistakes of modules/guide/not_compiling.md, as import_only.cpp is compiled, and looks for the first error in
# the page, which quotes clang 19. Arguments: build folder, ninja.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
cd "$1"
page=$(dirname "${BASH_SOURCE[0]}")/../../../modules/guide/not_compiling.md
object=$("$2" -t targets all | sed -n 's|^\(test/static/.*/import_only.cpp.o\): .*|\1|p')
compile=$("$2" -t commands -s "$object" | tail -1)
modules=$(grep -oE '@[^ ]+\.modmap' <<<"$compile")
compile="${compile%% -MD *} -fsyntax-only -x c++"
if [[ $(${compile%% *} -dM -E -x c++ /dev/null) != *"__clang_major__ 19"* ]]; then exit 77; fi

# expect SOURCE [OPTION...]: the first error is one that the page quotes.
expect() {
  local told
  told=$(printf '%b' "$1" | $compile "${@:2}" - 2>&1 | grep -m 1 -oE 'error: .*') || true
  grep -qF -- "${told:-nothing}" "$page" || { printf 'the page does not quote "%s" of\n%b' "$told" "$1" && exit 1; }
}
pool='int main() { gpumem::pool_resource pool{gpumem::device{0}, '
expect 'import gpumem;\n'
expect 'import gpumem;\n' "$modules" -std=c++17
for option in -std=gnu++20 -std=c++23 -fopenmp -fno-exceptions; do expect 'import gpumem;\n' "$modules" $option; done
expect 'import gpumem;\n#include <vector>\n' "$modules"
expect 'import gpumem;\nstd::chrono::steady_clock::time_point now;\n' "$modules"
expect "import gpumem;\n$pool{.max_size = 1}}; }\n" "$modules"
expect "import gpumem;\n${pool}gpumem::pool_options{.max_size = 1}}; }\n" "$modules"
