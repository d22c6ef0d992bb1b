# Makes a tree whose run.sh finds a set-up, and commands that only print how they were called.
# SPDX-License-Identifier: Apache-2.0
# Sourced with source_folder and scratch set; $scratch/tree is the tree, $scratch/elsewhere another folder.

rm -rf "$scratch"
mkdir -p "$scratch"/{bin,elsewhere} "$scratch/tree/.tools/bin" "$scratch/tree/test/consumer"
cp -r "$source_folder/cmake" "$scratch/tree/"
cp -r "$source_folder/test/consumer/first" "$scratch/tree/test/consumer/"
touch "$scratch/tree/.tools/environment"
cat >>"$scratch/tree/cmake/setup/setup.sh" <<'TEXT'
set_up() { echo "set_up $1"; }
TEXT

# stub NAME TEXT: puts a command into the folder that PATH begins with.
stub() {
  printf '#!/bin/bash\n%s\n' "$2" >"$scratch/bin/$1"
  chmod +x "$scratch/bin/$1"
}
# recorded NAME: makes a stub whose calls go to a file, except those that ask for a version.
recorded() { stub "$1" "[[ \$1 == --version ]] || { printf $1; printf ' [%s]' \"\$@\"; echo; } >>'$scratch/calls'"; }
for name in cmake ctest; do recorded "$name"; done
export PATH="$scratch/bin:$PATH"
unset CMAKE_BUILD_PARALLEL_LEVEL

# run_sh ARGUMENT...: calls run.sh from elsewhere; its exit status goes to status, its output and calls to files.
run_sh() {
  status=0
  : >"$scratch/calls"
  (cd "$scratch/elsewhere" && bash ../tree/cmake/run.sh "$@") >"$scratch/output" 2>&1 </dev/null || status=$?
}

# expect_calls: compares the calls with the standard input.
expect_calls() { diff "$scratch/calls" - || { cat "$scratch/output" && exit 1; }; }

# expect_said TEXT..., expect_status STATUS
expect_said() {
  local text
  for text in "$@"; do
    grep -qF -- "$text" "$scratch/output" || { cat "$scratch/output" && echo "missing in the output: $text" && exit 1; }
  done
}
expect_status() { [[ $status -eq $1 ]] || { cat "$scratch/output" && echo "exit status $status instead of $1" && exit 1; }; }
