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
expect "MB to download, "
expect "MB on disk: python3 clang-19 clang-tools-19"
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

# The output of an installer goes to a log. If the installer fails, the end of the log is shown.
installer() {
  printf '#!%s\n%s\n' "$BASH" "$2" >"$scratch/bin/$1"
  chmod +x "$scratch/bin/$1"
}
for tool in env tail uname; do ln -s "$(type -P "$tool")" "$scratch/bin/$tool"; done
installer sudo '"$@"'
installer apt-cache ':'
installer dpkg-query 'exit 1'
installer apt-get 'for ((i = 0; i < 100; ++i)); do echo "apt-get $1, line $i"; done; [[ $1 == update ]]'
run_sh demo
[[ $status -eq 1 ]] || { echo "exit status $status instead of 1" && exit 1; }
expect "gpumem: installing Debian packages; all output: $scratch/tree/.tools/install.log"
expect "apt-get install, line 99"
grep -q "apt-get update\|line 79" "$scratch/output" && echo "more than the end of the log is shown" && exit 1
grep -q "apt-get install, line 0" "$scratch/tree/.tools/install.log"

# The maker of a release reads the library's interface by abidw.
run_sh --dry-run package
[[ $status -eq 0 ]] || { echo "exit status $status instead of 0" && exit 1; }
[[ $(uname -m) != x86_64 ]] || expect "abidw and abidiff"

# The site needs no compiler.
run_sh --dry-run site
[[ $status -eq 0 ]] || { echo "exit status $status instead of 0" && exit 1; }
expect "MkDocs with Material"
if grep -q "clang-19\|CMake" "$scratch/output"; then echo "the site wants a compiler" && exit 1; fi
