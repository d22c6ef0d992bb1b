#!/usr/bin/env bash
# Runs the set-up again after .tools/environment was sourced: the links in .tools/bin must still lead to the tools, not
# to themselves. Nothing is missing, so neither apt-get nor pip is called.
# SPDX-License-Identifier: Apache-2.0
# usage: sourced_environment_test.sh SOURCE_FOLDER SCRATCH_FOLDER
set -euo pipefail
source_folder=$1 place=$2

rm -rf "$place"
mkdir -p "$place/bin" "$place/tree"
cp -r "$source_folder/cmake" "$place/tree/"
ln -s tree "$place/other name of the tree"
for tool in cmake ctest cpack ninja; do
  printf '#!/bin/sh\necho %s version 99.9\n' "$tool" >"$place/bin/$tool"
  chmod +x "$place/bin/$tool"
done
for tool in apt-get pip python3; do
  printf '#!/bin/sh\necho %s "$@" >>"%s/installers"\nexit 1\n' "$tool" "$place" >"$place/bin/$tool"
  chmod +x "$place/bin/$tool"
done
export PATH="$place/bin:$PATH"

# Only the build tools are really probed: compilers take long, and have no links.
set_up_in() {
  (
    cd "$1"
    source cmake/setup/setup.sh
    probe_compilers() { found_cxx=$BASH found_nvcc=$BASH found_cuda=$PWD found_cccl=$PWD && echo probed >>"$place/log"; }
    probe_libraries() { :; }
    set_up build
  )
}

expect_tools() {
  local tool
  for tool in cmake ctest cpack ninja; do
    [[ $(readlink "$place/tree/.tools/bin/$tool") == "$place/bin/$tool" ]] || {
      ls -l "$place/tree/.tools/bin"
      echo "$1: .tools/bin/$tool does not lead to the tool" && exit 1
    }
  done
}

set_up_in "$place/tree"
expect_tools "at first"
source "$place/tree/.tools/environment"
set_up_in "$place/tree"
expect_tools "sourced once"
source "$place/tree/.tools/environment"
set_up_in "$place/other name of the tree"
expect_tools "sourced twice, under another name of the folder"
set_up_in "$place/other name of the tree"
[[ $(grep -c probed "$place/log") -eq 3 ]] || { echo "an unchanged environment was probed again" && exit 1; }
[[ ! -e $place/installers ]] || { cat "$place/installers" && echo "an installer was called" && exit 1; }
