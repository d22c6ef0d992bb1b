# Prepares the machine for the build: probes the tools, reports what is missing, installs it, and probes again.
# SPDX-License-Identifier: Apache-2.0
# Sourced with the project's root as the working directory.
source cmake/setup/probe.sh
source cmake/setup/install.sh

dry_run=0 # 1: only say what would be done

fail() {
  printf 'gpumem: %s\n' "$@" >&2
  exit 1
}

# in_words SECONDS: rounds up, to ten seconds or to minutes.
in_words() {
  if (($1 < 90)); then
    echo "$((($1 / 10 + 1) * 10)) seconds"
  else
    echo "$((($1 + 59) / 60)) minutes"
  fi
}

# Prints PATH without .tools/bin, which a sourced .tools/environment adds: otherwise its links would be linked to
# themselves.
path_of_system() {
  local folders list=() folder
  IFS=: read -ra folders <<<"$PATH"
  for folder in "${folders[@]}"; do [[ $folder -ef .tools/bin ]] || list+=("$folder"); done
  (IFS=: && printf '%s\n' "${list[*]}")
}

# Prints a hash of everything that an earlier set-up depends on. If it is unchanged, nothing is probed again.
setup_key() {
  local tool
  {
    cat cmake/setup/*.{sh,py} cmake/setup/probes/*
    printf '%s\n' "$PWD" "${CXX-}" "${CUDACXX-}" "${CUDA_HOME-}" "${CUDA_PATH-}" "$PATH"
    printf '%s\n' "${GPUMEM_SETUP_TORCH-}" .tools/torch/*/parts
    for tool in clang++-19 clang++ nvcc cmake ninja doxygen abidw; do type -P "$tool" || true; done
    if [[ -f .tools/environment ]]; then
      cat .tools/environment
      source .tools/environment
      # Changes if a tool was removed or replaced.
      stat -Lc '%n %s %Y' "$CXX" "$CUDACXX" "$(type -P cmake)" "$(type -P ninja)" "$GPUMEM_CUDA_INCLUDE_DIR/cuda.h" \
        "$GPUMEM_CCCL_INCLUDE_DIR" 2>&1 || true
    fi
  } | sha256sum
}

# Writes the file with the tools that were found; people can source it too.
write_environment() {
  local cmake_folder
  cmake_folder=$(dirname "$found_cmake")
  mkdir -p .tools/bin
  ln -sf "$found_cmake" "$cmake_folder/ctest" "$cmake_folder/cpack" "$found_ninja" .tools/bin/
  {
    echo "# The tools that cmake/run.sh found or installed; source it to call cmake by hand."
    printf 'export CXX=%q\nexport CUDACXX=%q\n' "$found_cxx" "$found_nvcc"
    printf 'export GPUMEM_CUDA_INCLUDE_DIR=%q\nexport GPUMEM_CCCL_INCLUDE_DIR=%q\n' "$found_cuda" "$found_cccl"
    printf 'export PATH=%q:"$PATH"\n' "$PWD/.tools/bin"
  } >.tools/environment
}

# set_up install|build|package|test|lint|site: sets the environment so that it names every tool that the command needs;
# the site needs no compiler. A dry run only says what is missing.
set_up() {
  local level=$1 key
  PATH=$(path_of_system)
  key=$(setup_key)
  if [[ ! -f .tools/ready.$level || $(<".tools/ready.$level") != "$key" ]]; then
    if ((dry_run)); then probe_log=/dev/null; fi
    [[ $level == site ]] || echo "gpumem: looking for clang, CUDA and the libraries, by compiling small programs"
    probe_all "$level"
    if ((dry_run)); then
      say_what_is_missing
      return
    fi
    if ((${#missing[@]})); then
      say_what_is_missing
      install_missing
      probe_all "$level"
      ((${#missing[@]} == 0)) || fail "still missing after the installation:" "${missing[@]/#/  }" \
        "what the probes said is in $PWD/.tools/probe.log"
    fi
    [[ $level == site ]] || write_environment
    setup_key >".tools/ready.$level"
  fi
  [[ $level == site ]] || source .tools/environment
}
