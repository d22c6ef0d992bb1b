# Installs what the probes did not find: Debian packages with apt-get; wheels, or parts of them, from PyPI into .tools/.
# SPDX-License-Identifier: Apache-2.0

install_log=.tools/install.log

# Prints the command that becomes root; empty for root itself. Fails if there is none.
privilege() {
  if ((EUID == 0)); then return; fi
  type -P sudo
}

# Finds pip: the system's if it has one, otherwise that of a virtual environment of the project.
pip_command() {
  if [[ -x .tools/venv/bin/python ]]; then
    pip=(.tools/venv/bin/python -m pip)
  elif quietly python3 -m pip --version; then
    pip=(python3 -m pip)
  else
    quietly python3 -m venv .tools/venv && pip=(.tools/venv/bin/python -m pip)
  fi
}

can_make_pip() { [[ -x .tools/venv/bin/python ]] || quietly python3 -c "import pip" || quietly python3 -c "import ensurepip"; }

installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# Wheels need pip, and so does the default package index. If the system has no pip, Debian's python3-venv provides it.
want_pip() {
  if ((${#wheels[@]})) || [[ -n $torch_parts && -z ${PIP_INDEX_URL-} ]]; then
    can_make_pip || packages+=(python3-venv)
  fi
}

# megabytes NAME: prints how many megabytes of a package or wheel, with what it needs itself, are downloaded, and how many
# it takes on disk. All that are not named here are small libraries.
megabytes() {
  case $1 in
    clang-[0-9]*) echo 90 435 ;;
    clang-tools-*) echo 9 45 ;;
    clang-tidy-* | clang-format-*) echo 3 13 ;;
    libclang-rt-*) echo 7 65 ;;
    doxygen) echo 45 225 ;;
    abigail-tools) echo 3 13 ;;
    python3) echo 10 34 ;;
    python3-venv) echo 5 36 ;; # and the environment that is made with it
    cmake==*) echo 28 77 ;;
    cuda-toolkit*) echo 102 255 ;;
    mkdocs-material==*) echo 14 90 ;;
    nvidia-cuda-cccl==*) echo 4 25 ;;
    *) echo 1 2 ;;
  esac
}

# sum_of NAME...: prints the sums of both.
sum_of() {
  local name
  for name in "$@"; do megabytes "$name"; done | awk '{ download += $1; disk += $2 } END { print download + 0, disk + 0 }'
}

# say_packages WHAT NAME...
say_packages() {
  local download disk
  (($# > 1)) || return 0
  read -r download disk <<<"$(sum_of "${@:2}")"
  printf 'gpumem: %s, about %d MB to download, %d MB on disk: %s\n' "$1" "$download" "$disk" "${*:2}"
}

say_what_is_missing() {
  local download disk
  if ((${#missing[@]} == 0)); then
    echo "gpumem: all tools and libraries are there"
    return
  fi
  want_pip
  echo "gpumem: missing here:"
  printf '  %s\n' "${missing[@]}"
  say_packages "Debian packages" "${packages[@]}"
  say_packages "wheels from PyPI into $wheel_root" "${wheels[@]}"
  if [[ -n $torch_parts ]]; then
    printf "gpumem: parts of PyTorch's wheels from PyPI into %s, about 20 MB\n" "$torch_parts"
  fi
  read -r download disk <<<"$(sum_of "${packages[@]}" "${wheels[@]}")"
  # Debian unpacks about 50 MB a second.
  printf 'gpumem: installing that takes about %s, at 10 MB a second\n' "$(in_words $((download / 10 + disk / 50)))"
}

# installing WHAT COMMAND...: runs the command, with its output in a log; if it fails, shows the end of the log and ends
# the script.
installing() {
  printf 'gpumem: installing %s; all output: %s\n' "$1" "$PWD/$install_log"
  if ! "${@:2}" >>"$install_log" 2>&1; then
    tail -n 20 "$install_log" >&2
    fail "this failed: ${*:2}" "its whole output: $PWD/$install_log"
  fi
}

# stop REASON: ends the set-up on systems where the packages of the plan cannot be installed from here.
stop() {
  fail "$1: install the above by your own means, then call this again." \
    "The probes look at CXX, CUDACXX, CUDA_HOME, CUDA_PATH, GPUMEM_CCCL_INCLUDE_DIR and PATH."
}

install_packages() {
  local root_command list=() package
  type -P apt-get >/dev/null || stop "there is no apt-get on this system"
  root_command=$(privilege) || stop "this needs root, and there is no sudo"
  for package in "${packages[@]}"; do installed "$package" || list+=("$package"); done
  ((${#list[@]})) || stop "the packages are installed and do not work (see .tools/probe.log)"
  # shellcheck disable=SC2086
  $root_command apt-get update >>"$install_log" 2>&1 || echo "gpumem: apt-get update failed in part; going on" >&2
  for package in "${list[@]}"; do
    apt-cache show "$package" >/dev/null 2>&1 || stop "apt-get does not know the package $package"
  done
  # shellcheck disable=SC2086
  installing "Debian packages" $root_command env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "${list[@]}"
}

install_wheels() {
  pip_command || fail "python3 has neither pip nor venv" "see .tools/probe.log"
  installing wheels "${pip[@]}" install --upgrade --target "$wheel_root" "${wheels[@]}"
  # CMake's own CUDA support needs these two names, which the wheels lack. No report is known. To reproduce, install the
  # wheels and configure `project(x LANGUAGES CUDA)`. Remove the links when the wheels have both names.
  local toolkit=$wheel_root/nvidia/cu13
  if [[ -e $toolkit/lib/libcudart.so.13 ]]; then
    ln -sfn lib "$toolkit/lib64"
    ln -sf libcudart.so.13 "$toolkit/lib/libcudart.so"
  fi
}

# pip's Python, so that its configuration counts.
install_torch_parts() {
  pip_command || pip=(python3)
  "${pip[0]}" cmake/setup/torch_parts.py "$torch_parts" || exit 1
}

install_missing() {
  : >"$install_log"
  if ((${#packages[@]})); then install_packages; fi
  if ((${#wheels[@]})); then install_wheels; fi
  if [[ -n $torch_parts ]]; then install_torch_parts; fi
}
