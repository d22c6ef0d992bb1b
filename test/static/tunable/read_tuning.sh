#!/usr/bin/env bash
# Compiles a program with the header that cmake/tunable.py writes, and reads constants from the environment.
# SPDX-License-Identifier: Apache-2.0
# Arguments: source folder, python, compiler.
set -euo pipefail
unset GPUMEM_TUNING
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$2" "$1/cmake/tunable.py" "$1/src/base/tuning.hpp" "$folder/base/tuning.hpp"
cat > "$folder/main.cpp" <<'END'
#include <base/tuning.hpp>
int main() {
  using namespace gpumem::detail::tuning;
  std::printf("%zu %lld %d\n", page_fraction, static_cast<long long>(page_cost.count()), spare_events);
}
END
"$3" -std=c++20 -Wall -Wextra -Werror -I "$folder" "$folder/main.cpp" -o "$folder/main"

expect() { [[ $1 == "$2" ]] || { echo "expected: $2; got: $1"; exit 1; }; }
usual=$("$folder/main")
expect "$(GPUMEM_TUNING=page_fraction=300,page_cost=20000,spare_events=8 "$folder/main")" "300 20000 8"
expect "$(GPUMEM_TUNING=page_fraction=300 "$folder/main")" "300 ${usual#* }"
for wrong in page_fractions=300 page_fraction=3x page_fraction =3 page_fraction=-1 page_fraction=0 \
  page_fraction=inf page_cost=1e30; do
  status=0
  GPUMEM_TUNING=$wrong "$folder/main" 2> "$folder/told" || status=$?
  expect "$status $(cut -d: -f1 "$folder/told")" "2 GPUMEM_TUNING"
done
