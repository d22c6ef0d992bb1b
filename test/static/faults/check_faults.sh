#!/usr/bin/env bash
# Reports all planted faults whose line does not stand once in the sources. Argument: source folder.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
shopt -s globstar
cd "$1"
awk -f test/mutants/find_faults.awk test/mutants/*mutants.txt {src,bench}/**/*.cpp src/c/held_pool.hpp \
  modules/bridge/gpumem/device_heap_*.hpp
