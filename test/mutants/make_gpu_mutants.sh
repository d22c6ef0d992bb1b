#!/usr/bin/env bash
# Builds test_device once for each fault of gpu_mutants.txt, after test_device itself. Each program gets the name of its
# fault; a file beside it names the tests that find the fault. Arguments: source folder, build folder, ninja, the output
# folder.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
source_folder=$1 build=$2 ninja=$3 target=$4
source "$source_folder/test/mutants/make_mutant.sh"
rm -rf "$target"
mkdir -p "$target"
cd "$build"
for fault in $(grep -xE '[a-z_]+' "$source_folder/test/mutants/gpu_mutants.txt"); do
  read_fault gpu_mutants.txt "$fault"
  make_test "./test/mutants/gpu/$fault" gpumem test/device/test_device
  mv "test/mutants/gpu/$fault/test" "$target/$fault"
  printf '%s\n' "${facts[5]?$fault names no test}" >"$target/$fault.filter"
done
