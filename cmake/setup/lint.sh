#!/usr/bin/env bash
# Checks includes, lengths, exported names, comments and the names of variables, formats the sources, compares the
# symbols of both forms of the module, and runs clang-tidy over every unit of build/partitions. Build that, and the
# library of build/release, first.
# SPDX-License-Identifier: Apache-2.0
# usage: lint.sh [--check]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

major=$("$CXX" -dM -E -x c++ /dev/null | sed -n 's/^#define __clang_major__ //p')
format=(-i)
[[ ${1-} != --check ]] || format=(--dry-run --Werror)
status=0
for check in includes length surface prose names; do
  python3 "test/static/$check/check_$check.py" . || status=1
done
find modules src test bench -type f \( -name '*.cppm' -o -name '*.cpp' -o -name '*.hpp' -o -name '*.h' -o -name '*.cu' \) \
  -print0 | xargs -0 -r "clang-format-$major" "${format[@]}" || status=1

bash cmake/setup/compare_forms.sh build/partitions/modules/libgpumem.a build/release/modules/libgpumem.a || status=1

# gpumem_scheduled compiles the same files a second time, which need not be checked again.
mkdir -p build/lint
python3 - <<'PYTHON' >build/lint/files
import json
commands = json.load(open("build/partitions/compile_commands.json"))
seen = {}
for entry in commands:
    if "/_deps/" not in entry["file"] and "gpumem_scheduled.dir" not in entry["command"]:
        seen.setdefault(entry["file"], entry)
json.dump(list(seen.values()), open("build/lint/compile_commands.json", "w"), indent=1)
print("\n".join(seen))
PYTHON
xargs -d '\n' -a build/lint/files -P "${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" -n 1 "clang-tidy-$major" -p build/lint --quiet || status=1
exit "$status"
