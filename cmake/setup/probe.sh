# Finds the tools by trying them: each probe compiles, links or runs something that the project needs.
# SPDX-License-Identifier: Apache-2.0
# Results: found_* (paths), the arrays missing (for people), packages (Debian), wheels (PyPI), and torch_parts (a folder
# if parts of PyTorch are missing from it).

wheel_cuda=(nvidia-cuda-cccl==13.3.5.0.6 'cuda-toolkit[nvcc,nvvm,crt,cudart,nvtx]==13.0.2')
wheel_cccl=nvidia-cuda-cccl==13.3.5.0.6
wheel_cmake=cmake==3.31.6
wheel_ninja=ninja==1.13.0
wheel_mkdocs=mkdocs-material==9.8.2
clang_to_install=19

probes=$PWD/cmake/setup/probes
wheel_root=$PWD/.tools/wheels
probe_log=.tools/probe.log

# quietly COMMAND...: runs the command with its output in the log of the probes.
quietly() {
  {
    printf '+ %s\n' "$*"
    "$@"
  } >>"$probe_log" 2>&1
}

# at_least MINIMUM VERSION: succeeds if VERSION is MINIMUM or newer.
at_least() { [[ $2 =~ ^[0-9] && $(printf '%s\n' "$1" "$2" | sort -V | head -n 1) == "$1" ]]; }

clang_major() { "$1" -dM -E -x c++ /dev/null 2>/dev/null | sed -n 's/^#define __clang_major__ //p'; }

# Succeeds for a clang that compiles and links coroutines and scans modules.
probe_clang() {
  local major scan
  major=$(clang_major "$1") && [[ $major -ge 19 ]] || return 1
  scan=$("$1" -print-prog-name=clang-scan-deps)
  quietly "$1" -std=c++20 "$probes/coroutine.cpp" -o "$scratch/coroutine" &&
    quietly "$scratch/coroutine" &&
    quietly "$scan" -format=p1689 -- "$1" -std=c++20 -c "$probes/coroutine.cpp" -o "$scratch/coroutine.o"
}

# toolkit_of NVCC CLANG: prints the folder that contains bin/ and include/, as nvcc itself sees it. (nvcc may be a
# script or a link in another place.)
toolkit_of() { "$1" --dryrun -ccbin "$2" -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p'; }

# Succeeds for an nvcc that accepts this clang as host compiler and whose program links and starts.
probe_nvcc() {
  local nvcc=$1 clang=$2 top library
  top=$(toolkit_of "$nvcc" "$clang") && [[ -n $top ]] || return 1
  library=$(find_first "$top"/{lib64,lib,targets/x86_64-linux/lib}/libcudart_static.a) || return 1
  quietly "$nvcc" -std=c++20 -ccbin "$clang" -arch=sm_90 -c "$probes/kernel.cu" -o "$scratch/kernel.o" &&
    quietly "$clang" "$scratch/kernel.o" "$library" -lpthread -ldl -lrt -o "$scratch/kernel" &&
    quietly "$scratch/kernel"
}

probe_cccl() { quietly "$found_cxx" -std=c++20 -fsyntax-only -I"$1" -I"$found_cuda" "$probes/cccl.cpp"; }

probe_sanitizers() {
  local kind
  for kind in address,undefined thread; do
    quietly "$found_cxx" -std=c++20 "-fsanitize=$kind" "$probes/coroutine.cpp" -o "$scratch/sanitized" &&
      quietly "$scratch/sanitized" || return 1
  done
}

# probe_library FILE [FLAG...]: compiles and links a probe.
probe_library() { quietly "$found_cxx" -std=c++20 "$probes/$1.cpp" "${@:2}" -o "$scratch/$1"; }

find_first() {
  local path
  for path in "$@"; do
    [[ -e $path ]] && printf '%s\n' "$path" && return
  done
  return 1
}

# candidates NAME...: prints the absolute paths of those that exist, in this order, each once.
candidates() {
  local name path
  for name in "$@"; do
    if [[ -n $name ]] && path=$(type -P "$name"); then printf '%s\n' "$path"; fi
  done | awk '!seen[$0]++'
}

# Takes the first pair that works together: each nvcc refuses clangs that are too new for it.
find_compilers() {
  local clang nvcc clangs nvccs
  found_cxx='' found_nvcc='' found_cuda=''
  mapfile -t clangs < <(candidates "${CXX-}" clang++-19 clang++-20 clang++ clang++-21 clang++-22 clang++-23)
  mapfile -t nvccs < <(candidates "${CUDACXX-}" "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" "${CUDA_PATH:+$CUDA_PATH/bin/nvcc}" \
    nvcc /usr/local/cuda/bin/nvcc "$wheel_root/nvidia/cu13/bin/nvcc")
  for clang in "${clangs[@]}"; do
    probe_clang "$clang" || continue
    # Kept even without an nvcc, if the nvcc that would be installed accepts it.
    if [[ -z $found_cxx && $(clang_major "$clang") -le 20 ]]; then found_cxx=$clang; fi
    for nvcc in "${nvccs[@]}"; do
      if probe_nvcc "$nvcc" "$clang"; then
        found_cxx=$clang found_nvcc=$nvcc
        found_cuda=$(dirname "$(find_first "$(toolkit_of "$nvcc" "$clang")"/{include,targets/x86_64-linux/include}/cuda.h)")
        found_cuda=$(cd "$found_cuda" && pwd)
        return
      fi
    done
  done
}

find_cccl() {
  local directory
  found_cccl=''
  for directory in "${GPUMEM_CCCL_INCLUDE_DIR-}" "$found_cuda/cccl" "$wheel_root/nvidia/cu13/include/cccl" "$found_cuda"; do
    if [[ -d $directory/cuda/std ]] && probe_cccl "$directory"; then
      found_cccl=$directory
      return
    fi
  done
}

# find_tool NAME MINIMUM PATH...: prints the first tool that runs and is new enough.
find_tool() {
  local tool version
  for tool in "${@:3}"; do
    version=$("$tool" --version 2>>"$probe_log" | grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1) || continue
    if at_least "$2" "$version"; then
      printf '%s\n' "$tool"
      return
    fi
  done
}

# lacks DESCRIPTION: records what is missing; the caller adds the package that provides it.
lacks() { missing+=("$1"); }

# The build generates the interface with it.
probe_python() { type -P python3 >/dev/null || { lacks "Python 3" && packages+=(python3); }; }

probe_build_tools() {
  local list
  mapfile -t list < <(candidates cmake "$wheel_root/cmake/data/bin/cmake")
  found_cmake=$(find_tool cmake 3.28 "${list[@]}")
  [[ -n $found_cmake ]] || { lacks "CMake 3.28 or newer" && wheels+=("$wheel_cmake"); }
  mapfile -t list < <(candidates ninja "$wheel_root/bin/ninja")
  found_ninja=$(find_tool ninja 1.11 "${list[@]}")
  [[ -n $found_ninja ]] || { lacks "Ninja 1.11 or newer" && wheels+=("$wheel_ninja"); }
}

probe_compilers() {
  find_compilers
  if [[ -z $found_cxx ]]; then
    lacks "clang 19 or newer with libstdc++ and clang-scan-deps"
    packages+=("clang-$clang_to_install" "clang-tools-$clang_to_install")
  fi
  if [[ -z $found_nvcc ]]; then
    lacks "nvcc of CUDA 13.0 or newer with libcudart_static and a host compiler that it takes"
    lacks "CCCL 3.5.0 or newer (headers)"
    wheels+=("${wheel_cuda[@]}")
    return
  fi
  find_cccl
  [[ -n $found_cccl ]] || { lacks "CCCL 3.5.0 or newer (headers)" && wheels+=("$wheel_cccl"); }
}

probe_libraries() {
  local entry name package flags
  for entry in "googletest libgmock-dev -lgmock_main -lgmock -lgtest" "benchmark libbenchmark-dev -lbenchmark" \
    "cli11 libcli11-dev" "json nlohmann-json3-dev" "zlib zlib1g-dev -lz" \
    "asio libasio-dev"; do
    read -r name package flags <<<"$entry"
    # shellcheck disable=SC2086
    if [[ -z $found_cxx ]] || ! probe_library "$name" $flags; then
      lacks "the library $name (headers and library)"
      packages+=("$package")
    fi
  done
}

# The page of gpumem-report contains D3; without it that program is not built.
probe_d3() {
  [[ -r /usr/share/javascript/d3/d3.min.js ]] || ! type -P apt-get >/dev/null ||
    { lacks "D3 (for gpumem-report)" && packages+=(libjs-d3); }
}

probe_sanitizer_runtime() {
  local major=$clang_to_install
  [[ -n $found_cxx ]] && probe_sanitizers && return
  [[ -z $found_cxx ]] || major=$(clang_major "$found_cxx")
  lacks "clang's sanitizer runtimes"
  packages+=("libclang-rt-$major-dev")
}

# The parts of PyTorch with which src/torch is compiled and tested; PyPI has them for x86_64 only.
probe_torch_parts() {
  [[ $(uname -m) == x86_64 && ${GPUMEM_SETUP_TORCH-} != off ]] || return 0
  quietly python3 cmake/setup/torch_parts.py .tools/torch --check && return
  lacks "parts of PyTorch's wheels, for tests (headers and two libraries)"
  torch_parts=.tools/torch
}

# The test static.reference builds the API reference.
probe_reference_tool() {
  type -P doxygen >/dev/null || { lacks "doxygen" && packages+=(doxygen); }
}

# `package` writes the interface of the C library as text, and the test packaging.abi compares it with the last release.
probe_abi_tools() {
  [[ $(uname -m) != x86_64 ]] || type -P abidw >/dev/null || ! type -P apt-get >/dev/null ||
    { lacks "abidw and abidiff" && packages+=(abigail-tools); }
}

# MkDocs with its theme, and the style of the API reference.
probe_site_tools() {
  PYTHONPATH=$wheel_root quietly python3 -c "import mkdocs, material" ||
    { lacks "MkDocs with Material" && wheels+=("$wheel_mkdocs"); }
  [[ -f /usr/share/doxygen-awesome-css/doxygen-awesome.css ]] ||
    { lacks "doxygen-awesome-css" && packages+=(doxygen-awesome-css); }
}

probe_lint_tools() {
  local major=$clang_to_install tool
  [[ -z $found_cxx ]] || major=$(clang_major "$found_cxx")
  for tool in clang-format clang-tidy; do
    type -P "$tool-$major" >/dev/null || { lacks "$tool $major" && packages+=("$tool-$major"); }
  done
}

# probe_all install|build|package|test|lint|site: runs the probes for a command.
probe_all() {
  missing=() packages=() wheels=() torch_parts=''
  mkdir -p "$(dirname "$probe_log")"
  scratch=$(mktemp -d)
  : >"$probe_log"
  probe_python
  if [[ $1 != site ]]; then
    probe_build_tools
    probe_compilers
  fi
  if [[ $1 != install && $1 != site ]]; then
    probe_libraries
    probe_d3
  fi
  if [[ $1 == test ]]; then
    probe_sanitizer_runtime
    probe_torch_parts
    probe_reference_tool
  fi
  if [[ $1 == test || $1 == package ]]; then probe_abi_tools; fi
  if [[ $1 == lint ]]; then probe_lint_tools; fi
  if [[ $1 == site ]]; then
    probe_reference_tool
    probe_site_tools
  fi
  rm -rf "$scratch"
}
