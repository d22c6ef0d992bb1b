# Configures and builds: announces what, shows one line of progress, and keeps the whole output in a log.
# SPDX-License-Identifier: Apache-2.0

# act COMMAND...: runs the command; in a dry run only prints it.
act() {
  if ((dry_run)); then
    printf 'gpumem: would run: %s\n' "$*"
  else
    "$@"
  fi
}

# Prints how many jobs, or tests, run at a time.
jobs_at_once() {
  if [[ ${CMAKE_BUILD_PARALLEL_LEVEL-} =~ ^[1-9][0-9]*$ ]]; then
    echo "$CMAKE_BUILD_PARALLEL_LEVEL"
  else
    nproc
  fi
}

log_of() { printf 'build/%s/build.log' "$1"; }

# announce WHAT MEGABYTES SECONDS PRESET...: says what will be built, and what that costs where nothing of it has been
# built. The seconds are of one processor.
announce() {
  local jobs preset
  jobs=$(jobs_at_once)
  printf 'gpumem: %s %s, with %s at a time.\n' "$( ((dry_run)) && echo "would build" || echo builds)" "$1" "$jobs"
  printf 'gpumem: where nothing of it has been built, that takes about %s and %d MB; otherwise less.\n' \
    "$(in_words $(($3 / jobs)))" "$2"
  for preset in "${@:4}"; do printf 'gpumem: all output of its build: %s\n' "$PWD/$(log_of "$preset")"; done
}

# configure PRESET [OPTION...]: configures, from scratch if the tools have changed since the last time. Warnings and
# errors are shown too.
configure() {
  local fresh=() log
  log=$(log_of "$1")
  if [[ -f build/$1/CMakeCache.txt ]] && ! cmp -s .tools/environment "build/$1/environment"; then
    fresh=(--fresh)
  fi
  if ((dry_run)); then
    act cmake --preset "$1" "${fresh[@]}" "${@:2}"
    return
  fi
  mkdir -p "build/$1"
  : >"$log"
  { cmake --preset "$1" "${fresh[@]}" "${@:2}" 2>&1 >&3 | tee -a "$log" >&2; } 3>>"$log" ||
    fail "configuring failed; its output: $PWD/$log"
  cp .tools/environment "build/$1/environment"
}

# show_progress: reads Ninja's output. On a terminal it rewrites one line; otherwise it prints one each tenth part, and
# at the first step after a minute.
show_progress() {
  local line step='^\[([0-9]+)/([0-9]+)\] (.*)' text tenth=-1 last=$SECONDS begin=$SECONDS
  while IFS= read -r line; do
    [[ $line =~ $step ]] || continue
    text=$(printf 'gpumem: %d of %d steps, %d:%02d' "${BASH_REMATCH[@]:1:2}" \
      $(((SECONDS - begin) / 60)) $(((SECONDS - begin) % 60)))
    if [[ -t 1 ]]; then
      text+="  ${BASH_REMATCH[3]}"
      printf '\r\e[K%s' "${text:0:$((${COLUMNS:-80} - 1))}"
    elif ((BASH_REMATCH[1] * 10 / BASH_REMATCH[2] != tenth || SECONDS - last >= 60)); then
      printf '%s\n' "$text"
      tenth=$((BASH_REMATCH[1] * 10 / BASH_REMATCH[2])) last=$SECONDS
    fi
  done
  if [[ -t 1 && -n ${text-} ]]; then echo; fi
}

# end_of_log LOG: prints at most 100 lines from the first failed step on, otherwise the last 40, without the steps that
# succeeded.
end_of_log() {
  awk '/^\[[0-9]+\/[0-9]+\] / { next }
    { line[++count] = $0 }
    /^FAILED: / && !failed { failed = count }
    END {
      at = failed ? failed : count > 40 ? count - 39 : 1
      last = failed && count > failed + 99 ? failed + 99 : count
      for (; at <= last; ++at) print line[at]
    }' "$1"
}

# logged PRESET COMMAND...: runs a step of a build; if it fails, shows the end of the log and ends the script.
logged() {
  local log
  log=$(log_of "$1")
  if ((dry_run)); then
    act "${@:2}"
    return
  fi
  if ! NINJA_STATUS='[%f/%t] ' "${@:2}" 2>&1 | tee -a "$log" | show_progress; then
    echo "gpumem: the end of $log:" >&2
    end_of_log "$log" >&2
    fail "this failed: ${*:2}" "its whole output: $PWD/$log"
  fi
}

# build PRESET [OPTION...]: configures and builds.
build() {
  configure "$1"
  logged "$1" cmake --build --preset "$1" "${@:2}"
}
