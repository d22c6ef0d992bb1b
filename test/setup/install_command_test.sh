#!/usr/bin/env bash
# `run.sh install` configures the preset for the library alone, with the prefix, and needs no test library.
# SPDX-License-Identifier: Apache-2.0
# usage: install_command_test.sh SOURCE_FOLDER SCRATCH_FOLDER
set -euo pipefail
source_folder=$1 scratch=$2

rm -rf "$scratch"
mkdir -p "$scratch/tree/cmake/setup" "$scratch/tree/.tools" "$scratch/tree/build/install" "$scratch/elsewhere"
cp "$source_folder/cmake/run.sh" "$scratch/tree/cmake/"
touch "$scratch/tree/.tools/environment"
cat >"$scratch/tree/cmake/setup/setup.sh" <<'TEXT'
set_up() { echo "set_up $1"; }
cmake() { printf 'cmake'; printf ' [%s]' "$@"; echo; }
TEXT

# expect PREFIX_OPTION ARGUMENT...: compares the calls of `run.sh install ARGUMENT...`.
expect() {
  diff <(cd "$scratch/elsewhere" && bash ../tree/cmake/run.sh install "${@:2}") - <<TEXT
set_up install
cmake [--preset] [install]$1
cmake [--build] [--preset] [install]
TEXT
}
expect ""
expect " [-DCMAKE_INSTALL_PREFIX=/opt/gpu memory]" "/opt/gpu memory"
expect " [-DCMAKE_INSTALL_PREFIX=$scratch/elsewhere/prefix]" prefix

# The level `install` of the set-up does not ask for the libraries of the tests; `build` does.
libraries_asked() {
  (
    cd "$scratch/tree"
    source "$source_folder/cmake/setup/probe.sh"
    probe_build_tools() { :; }
    probe_compilers() { :; }
    probe_libraries() { echo asked; }
    probe_all "$1"
  )
}
[[ -z $(libraries_asked install) && $(libraries_asked build) == asked ]]
