#!/usr/bin/env bash
# The entry point for all jobs: sets the machine up, then builds and runs the requested job.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
folder=$PWD
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
source cmake/setup/setup.sh
source cmake/setup/build.sh
source cmake/setup/installation.sh

usage() {
  cat <<'TEXT'
usage: bash cmake/run.sh [--dry-run] COMMAND [ARGUMENT...]
  demo [--simulated]  build, show in one screen what the library is; --simulated: without the GPU that is there
  demo -v [ARG...]    also replay the traces of bench/traces (arguments go to gpumem-replay; -v --help lists them)
  test [ARGUMENT...]  build, run the tests, then the property tests under the sanitizers (arguments go to ctest)
  install [PREFIX]    build what the library needs and install it (into CMake's default, /usr/local, without PREFIX)
  lint [--check]      format the sources, tidy them; --check changes nothing and fails where it would
  gpu  [ARGUMENT...]  tests, planted faults and benchmarks on this machine's GPU, or a bundle for a machine with one
  package [ARG...]    make the files of a release in dist/: archives, the wheel, checksums (--help lists the arguments)
  site                make the guide, the API reference and the figures as static pages: build/site/html/index.html
  setup               only install what is missing
Each command first looks for its tools (clang >= 19, CMake >= 3.28, Ninja >= 1.11, CUDA >= 13.0, CCCL >= 3.5.0 and the
test libraries), says what is missing, and installs that: Debian packages with apt-get, the rest into .tools/.
--dry-run says what the command would install, build and run, and changes nothing. CMAKE_BUILD_PARALLEL_LEVEL is the
number of jobs and of tests at a time; without it there is one for each processor.
TEXT
}

# wrong SENTENCE: ends after a wrong command line.
wrong() {
  echo "cmake/run.sh: $1" >&2
  usage >&2
  exit 2
}

# Sets `command` and `arguments`. --dry-run may stand anywhere.
read_command_line() {
  local argument
  command='' arguments=()
  for argument in "$@"; do
    if [[ $argument == --dry-run ]]; then
      dry_run=1
    elif [[ -n $command ]]; then
      arguments+=("$argument")
    elif [[ $argument == -* && $argument != -h && $argument != --help ]]; then
      wrong "unknown option '$argument'"
    else
      command=$argument
    fi
  done
}

# accept COUNT OPTION...: ends the script if the command has more arguments than COUNT, or an option other than these.
accept() {
  local argument
  for argument in "${arguments[@]}"; do
    [[ $argument != -* || " ${*:2} " == *" $argument "* ]] || wrong "$command has no option '$argument'"
  done
  ((${#arguments[@]} <= $1)) || wrong "$command takes no '${arguments[$1]}'"
}

# Asks ctest before the build, which takes long, whether it knows the arguments.
accept_ctest_arguments() {
  local nowhere status=0
  ((${#arguments[@]} && !dry_run)) || return 0
  nowhere=$(mktemp -d)
  ctest --test-dir "$nowhere" --show-only "${arguments[@]}" >/dev/null || status=2
  rm -rf "$nowhere"
  ((status == 0)) || exit "$status"
}

run_demo() {
  local long=()
  announce "the demo and the replay tool" 190 180 release
  build release --target gpumem_demo gpumem-replay
  if [[ ${1-} == -v ]]; then
    long=(act build/release/bench/gpumem-replay "${@:2}" bench/traces/*.csv.gz)
    set --
  fi
  act build/release/bench/gpumem_demo "$@" bench/traces/*.csv.gz
  "${long[@]}"
}

run_test() {
  local preset
  announce "the tests, and the property tests with each sanitizer, and runs them" 4500 4000 release asan tsan
  for preset in release asan tsan; do
    build "$preset"
    act ctest --preset "$preset" --parallel "$(jobs_at_once)" "$@"
  done
}

# The tree is judged before anything is installed or built, if there are the tools to do so.
run_package() {
  local maker=(env -C "$folder" python3 "$root/cmake/packaging/package.py")
  if [[ " $* " == *" --only-check "* ]]; then
    act "${maker[@]}" "$@"
    return
  fi
  if type -P python3 git >/dev/null; then act "${maker[@]}" --only-check "$@"; fi
  set_up package
  act "${maker[@]}" "$@"
}

run_lint() {
  announce "the library, and all units in partitions, which clang-tidy then reads" 3000 4800 release partitions
  build release --target gpumem
  build partitions
  act bash cmake/setup/lint.sh "$@"
}

read_command_line "$@"
case $command in
  demo)
    case ${arguments[0]-} in
      -h | --help) usage && exit ;;
      -v) ;;
      '' | --simulated) accept 1 --simulated ;;
      *) accept 0 ;;
    esac
    set_up build
    run_demo "${arguments[@]}"
    ;;
  test)
    set_up test
    accept_ctest_arguments
    run_test "${arguments[@]}"
    ;;
  install)
    accept 1
    set_up install
    run_install "${arguments[@]}"
    ;;
  lint)
    accept 1 --check
    set_up lint
    run_lint "${arguments[@]}"
    ;;
  gpu)
    # A bundle needs no tools on the machine with the GPU.
    [[ ${arguments[0]-} == run ]] || set_up test
    act bash bench/gpu.sh "${arguments[@]}"
    ;;
  package)
    case " ${arguments[*]} " in *" --help "* | *" -h "*) python3 cmake/packaging/package.py --help && exit ;; esac
    run_package "${arguments[@]}"
    ;;
  site)
    accept 0
    set_up site
    # Silences a notice of the theme about a later MkDocs.
    act env PYTHONPATH="$wheel_root" NO_MKDOCS_2_WARNING=1 python3 cmake/site/build_site.py . build/site
    ;;
  setup)
    accept 0
    set_up test
    ;;
  '' | help | -h | --help) usage ;;
  *) wrong "unknown command '$command'" ;;
esac
