# Installs the library, from the tree of the demo where that is configured, and says how a project uses it.
# SPDX-License-Identifier: Apache-2.0
tools_of_bench=(gpumem-replay gpumem-report gpumem-advise gpumem-top gpumem-bench gpumem-completion-bench
  gpumem-waiting-bench)

# tree_serves PREFIX: succeeds if build/release can be installed to the prefix. For /usr the folders have other names
# (CMake's GNUInstallDirs), which the tree of the preset `install` knows when it is configured.
tree_serves() { [[ -f build/release/build.ninja && $1 != /usr && $1 != / ]]; }

# run_install [PREFIX]: compiles what is not yet compiled, and installs. Tools that were built before are installed too,
# so they are brought up to date.
run_install() {
  local prefix=${1-} tree=install tool targets=(gpumem_installed_files)
  [[ -z $prefix || $prefix == /* ]] || prefix=$folder/$prefix
  [[ $prefix == / ]] || prefix=${prefix%/}
  if tree_serves "$prefix"; then
    tree=release
    for tool in "${tools_of_bench[@]}"; do [[ ! -e build/release/bench/$tool ]] || targets+=("$tool"); done
    announce "what the library needs beyond the demo" 40 45 release
    build release --target "${targets[@]}"
    logged release cmake --install build/release ${prefix:+--prefix "$prefix"}
  else
    announce "the library" 100 170 install
    configure install ${prefix:+"-DCMAKE_INSTALL_PREFIX=$prefix"}
    logged install cmake --build --preset install
  fi
  ((dry_run)) || say_how_to_use "$tree" "${prefix:-$(installed_to "build/$tree")}"
}

installed_to() { sed -n 's/^CMAKE_INSTALL_PREFIX:[^=]*=//p' "$1/CMakeCache.txt"; }

version_of_cmake() { "$1" --version 2>/dev/null | sed -n '1s/.* //p'; }

# Says which CMake a project needs, if the system's is too old or there is none.
say_cmake() {
  local system version
  version=$(version_of_cmake .tools/bin/cmake)
  system=$(PATH=$(path_of_system) && type -P cmake) && system=$(version_of_cmake "$system")
  if [[ -z $system ]]; then
    echo "sets clang and CMake $version (the system has no CMake)"
  elif ! at_least 3.28 "$system"; then
    echo "sets clang and CMake $version (the system's $system is too old: gpumem needs 3.28)"
  else
    echo "sets clang and CMake $version"
  fi
}

# say_how_to_use TREE PREFIX
say_how_to_use() {
  local example=test/consumer/first
  printf '\ngpumem is installed in %s. A project that uses it, in a folder of its own:\n\nCMakeLists.txt\n' "$2"
  grep -v '^#' $example/CMakeLists.txt | sed 's/^/  /'
  printf '\napp.cpp, which needs no GPU\n'
  sed 's/^/  /' $example/app.cpp
  printf '\nBuild and run it there:\n  source %q  # %s\n' "$PWD/.tools/environment" "$(say_cmake)"
  printf '  cmake -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH=%q -S . -B build\n' "$2"
  printf '  cmake --build build && build/app\n'
  printf '\nTo remove gpumem again:\n  %q --build %q --target uninstall\n' "$PWD/.tools/bin/cmake" "$PWD/build/$1"
}
