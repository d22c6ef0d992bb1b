#!/usr/bin/env bash
# Tests the messages of run.sh: wrong command lines, dry runs, progress, failures, and the number of jobs.
# SPDX-License-Identifier: Apache-2.0
# usage: run_command_test.sh SOURCE_FOLDER SCRATCH_FOLDER
set -euo pipefail
source_folder=$1 scratch=$2
source "$(dirname "$0")/stubbed_tree.sh"

# Wrong command lines end with 2 and start nothing.
expect_wrong() {
  run_sh "${@:2}"
  expect_status 2
  expect_said "$1" "usage: bash cmake/run.sh"
  expect_calls </dev/null
}
expect_wrong "unknown command 'tset'" tset
expect_wrong "unknown option '--dryrun'" --dryrun demo
expect_wrong "demo has no option '-w'" demo -w
expect_wrong "demo has no option '--simulate'" demo --simulate
expect_wrong "demo takes no 'trace.csv'" demo trace.csv
expect_wrong "install has no option '--prefix'" install --prefix /opt
expect_wrong "install takes no 'b'" install a b
expect_wrong "lint has no option '--fix'" lint --fix
expect_wrong "setup takes no 'all'" setup all
expect_wrong "site takes no 'here'" site here
if type -P git python3 >/dev/null; then
  for line in package "package --only-check --output here"; do
    # shellcheck disable=SC2086
    run_sh $line
    expect_status 1
    expect_said "package.py: $(cd "$scratch/tree" && pwd -P) is no clone of gpumem"
    expect_calls </dev/null
  done
fi
run_sh package --twice --source-only
expect_status 2
run_sh package --help
expect_status 0
expect_said "--torch-headers"
expect_calls </dev/null
run_sh demo --help
expect_status 0
expect_said "demo -v [ARG...]"
expect_calls </dev/null
stub ctest 'echo "Unknown argument: $4" >&2; exit 1'
run_sh test --unknown
expect_status 2
expect_said "Unknown argument: --unknown"
recorded ctest

# A dry run changes nothing, wherever the option stands.
before=$(cd "$scratch/tree" && find . | sort)
for line in "--dry-run demo" "test --dry-run" "install --dry-run here" "lint --dry-run" "gpu --dry-run" \
  "package --dry-run" "site --dry-run"; do
  # shellcheck disable=SC2086
  run_sh $line
  expect_status 0
  expect_said "would run: "
  expect_calls </dev/null
done
for level in "1 3 minutes" "4 50 seconds"; do
  CMAKE_BUILD_PARALLEL_LEVEL=${level%% *} run_sh --dry-run demo
  expect_said "where nothing of it has been built, that takes about ${level#* } and "
done
[[ $before == "$(cd "$scratch/tree" && find . | sort)" ]] || { echo "a dry run changed files" && exit 1; }

# A build that succeeds: lines at the tenth parts, and all of the output in the log.
stub cmake 'if [[ $1 == --build ]]; then for i in {1..200}; do echo "[$i/200] Building $i.o"; done; fi; echo "cmake $*"'
run_sh test
expect_status 0
expect_said "with $(nproc) at a time" "gpumem: 1 of 200 steps, 0:0" "gpumem: 200 of 200 steps"
[[ $(grep -c "of 200 steps" "$scratch/output") -le 40 ]] || { cat "$scratch/output" && exit 1; }
grep -q "Building 137.o" "$scratch/tree/build/release/build.log"
grep -q "cmake --preset release" "$scratch/tree/build/release/build.log"
expect_calls <<TEXT
ctest [--preset] [release] [--parallel] [$(nproc)]
ctest [--preset] [asan] [--parallel] [$(nproc)]
ctest [--preset] [tsan] [--parallel] [$(nproc)]
TEXT
CMAKE_BUILD_PARALLEL_LEVEL=7 run_sh test -R pool
expect_said "with 7 at a time"
grep -qF "ctest [--preset] [tsan] [--parallel] [7] [-R] [pool]" "$scratch/calls"

# On a terminal one line is rewritten.
(cd "$scratch/elsewhere" && python3 -c 'import pty, sys; pty.spawn(sys.argv[1:])' bash ../tree/cmake/run.sh test) \
  </dev/null >"$scratch/output"
[[ $(grep -c "of 200 steps" "$scratch/output") -eq 3 ]] || { cat "$scratch/output" && exit 1; }
expect_said $'\r\e[Kgpumem: 137 of 200 steps'

# A build that fails shows the failed step, names the log, and nothing follows.
stub cmake 'if [[ $1 == --build ]]; then echo "[1/2] Building a.o"; echo "FAILED: b.o"; echo "b.cpp:1: wrong"; exit 1; fi'
run_sh test
expect_status 1
expect_said "FAILED: b.o" "b.cpp:1: wrong" "$scratch/tree/build/release/build.log" "cmake --build --preset release"
grep -q "Building a.o" "$scratch/output" && echo "a step that succeeded is shown" && exit 1
expect_calls </dev/null

# A step of another kind that fails, such as an installation, shows the last lines.
mkdir -p "$scratch/tree/build/release"
touch "$scratch/tree/build/release/build.ninja"
stub cmake 'if [[ $1 == --install ]]; then seq 1000 | sed "s/^/installing /"; echo "no permission"; exit 1; fi'
run_sh install /opt/gpumem
expect_status 1
expect_said "no permission" "installing 962" "cmake --install build/release --prefix /opt/gpumem"
grep -q "installing 961$" "$scratch/output" && echo "more than 40 lines are shown" && exit 1

# run.sh shows the errors of configuring; the log has the other output.
stub cmake 'echo "-- Detecting"; echo "CMake Error: no" >&2; exit 1'
run_sh demo
expect_status 1
expect_said "CMake Error: no" "configuring failed"
grep -q -- "-- Detecting" "$scratch/output" && echo "the output of configuring is shown" && exit 1
grep -q -- "-- Detecting" "$scratch/tree/build/release/build.log"
