#!/usr/bin/env bash
# `run.sh install` takes the tree of the demo if that is configured, and otherwise the preset for the library alone. It
# needs no test library, and says how a project uses the library.
# SPDX-License-Identifier: Apache-2.0
# usage: install_command_test.sh SOURCE_FOLDER SCRATCH_FOLDER
set -euo pipefail
source_folder=$1 scratch=$2
source "$(dirname "$0")/stubbed_tree.sh"

# The preset `install`, with no tree of the demo.
expect_preset() {
  run_sh install "${@:2}"
  expect_status 0
  expect_calls <<TEXT
cmake [--preset] [install]$1
cmake [--build] [--preset] [install]
TEXT
}
mkdir -p "$scratch/tree/build/install"
echo 'CMAKE_INSTALL_PREFIX:PATH=/usr/local' >"$scratch/tree/build/install/CMakeCache.txt"
cp "$scratch/tree/.tools/environment" "$scratch/tree/build/install/environment"
expect_preset ""
expect_said "set_up install" "gpumem is installed in /usr/local."
expect_preset " [-DCMAKE_INSTALL_PREFIX=/opt/gpu memory]" "/opt/gpu memory"
expect_preset " [-DCMAKE_INSTALL_PREFIX=$scratch/elsewhere/prefix]" prefix/

# The closing lines say that the system's CMake is too old, and print the program that a test builds.
stub cmake '[[ $1 != --version ]] || echo "cmake version 3.25.1"'
printf '#!/bin/sh\necho "cmake version 3.31.6"\n' >"$scratch/tree/.tools/bin/cmake"
chmod +x "$scratch/tree/.tools/bin/cmake"
run_sh install /opt/gpumem
expect_status 0
expect_said "sets clang and CMake 3.31.6 (the system's 3.25.1 is too old: gpumem needs 3.28)" \
  "tree/.tools/environment" "-DCMAKE_PREFIX_PATH=/opt/gpumem" "  find_package(gpumem REQUIRED)" \
  "  gpumem::simulator::load();" \
  "tree/build/install --target uninstall"
recorded cmake

# The tree of the demo compiles what is missing, and the tools that it has.
mkdir -p "$scratch/tree/build/release/bench"
touch "$scratch/tree/build/release/"{build.ninja,environment,bench/gpumem-replay}
echo 'CMAKE_INSTALL_PREFIX:PATH=/usr/local' >"$scratch/tree/build/release/CMakeCache.txt"
expect_tree_of_demo() {
  run_sh install "${@:2}"
  expect_status 0
  expect_calls <<TEXT
cmake [--preset] [release]
cmake [--build] [--preset] [release] [--target] [gpumem_installed_files] [gpumem-replay]
cmake [--install] [build/release]$1
TEXT
}
expect_tree_of_demo ""
expect_said "gpumem is installed in /usr/local." "tree/build/release --target uninstall"
expect_tree_of_demo " [--prefix] [$scratch/elsewhere/my prefix]" "my prefix"
expect_preset " [-DCMAKE_INSTALL_PREFIX=/usr]" /usr/ # its library folder has another name

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
