#!/usr/bin/env bash
# On a system without apt-get, compiler and Python, run.sh must say what is needed and fail, and install nothing.
# SPDX-License-Identifier: Apache-2.0
# usage: unknown_system_test.sh SOURCE_FOLDER SCRATCH_FOLDER
set -euo pipefail
source_folder=$1 scratch=$2

rm -rf "$scratch"
mkdir -p "$scratch/bin" "$scratch/tree"
cp -r "$source_folder/cmake" "$scratch/tree/"
for tool in bash awk cat cmp cp dirname grep head ln mkdir mktemp nproc rm sed sha256sum sort stat; do
  ln -s "$(type -P "$tool")" "$scratch/bin/$tool"
done

run_sh() {
  status=0
  env -i PATH="$scratch/bin" HOME="$scratch" bash "$scratch/tree/cmake/run.sh" "$@" >"$scratch/output" 2>&1 || status=$?
  cat "$scratch/output"
}
expect() { grep -qF -- "$1" "$scratch/output" || { echo "missing in the output: $1" && exit 1; }; }

run_sh --dry-run test
[[ $status -eq 0 && ! -e $scratch/tree/.tools ]] || { echo "a dry run failed, or changed the tree" && exit 1; }
expect "CMake 3.28 or newer"
expect "MB: python3 clang-19 clang-tools-19"
expect "would run: cmake --preset release"

run_sh test
[[ $status -eq 1 ]] || { echo "exit status $status instead of 1" && exit 1; }
expect "clang 19 or newer with libstdc++ and clang-scan-deps"
expect "nvcc of CUDA 13.0 or newer"
expect "CCCL 3.5.0 or newer"
expect "CMake 3.28 or newer"
expect "Ninja 1.11 or newer"
expect "clang-19 clang-tools-19"
expect "libgmock-dev"
expect "there is no apt-get on this system"
[[ ! -e $scratch/tree/.tools/wheels ]] || { echo "something was installed" && exit 1; }
