#!/usr/bin/env bash
# Builds PyTorch's allocator as a peer, against the PyTorch of the first python3 in PATH.
# SPDX-License-Identifier: Apache-2.0
# usage: torch.sh OUTPUT_FOLDER
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mapfile -t facts < <(python3 -c '
import torch, torch.utils.cpp_extension as e
print(torch.utils.cmake_prefix_path.rsplit("/share/", 1)[0] + "/lib")
print(" ".join("-isystem " + p for p in e.include_paths("cuda")))
print(int(torch._C._GLIBCXX_USE_CXX11_ABI))')
read -ra includes <<<"${facts[1]}"
"${CXX:-g++}" -std=c++20 -O2 -fPIC -shared "-D_GLIBCXX_USE_CXX11_ABI=${facts[2]}" "${includes[@]}" \
  -o "$1/libgpumem_peer_torch.so" "$here/torch.cpp" \
  "-L${facts[0]}" "-Wl,-rpath,${facts[0]}" -lc10_cuda -lc10
