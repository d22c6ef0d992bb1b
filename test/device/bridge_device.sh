#!/usr/bin/env bash
# Builds bridge_device.cu with nvcc alone, in C++17 with nvcc's own CCCL, and runs it.
# Arguments: the folder of libgpumem_c.so, the folder of the headers. Needs nvcc and a GPU; exits with 77 where one of
# them is missing.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
library=$1 headers=$2
command -v nvcc >/dev/null || { echo "skipped: there is no nvcc"; exit 77; }
ls /dev/nvidia[0-9]* >/dev/null 2>&1 || { echo "skipped: there is no GPU"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
nvcc -std=c++17 -arch=native -o "$scratch/program" "$here/bridge_device.cu" -I"$headers" -L"$library" -lgpumem_c \
  -Xlinker -rpath="$library"
"$scratch/program"
