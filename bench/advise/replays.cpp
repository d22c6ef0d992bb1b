// Forks a child for each job, and reads its result from a pipe.
// SPDX-License-Identifier: Apache-2.0
module;
#include <poll.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>
module advise:replays.impl;
import replay;
import :candidate;
import :limits;
import :replays;

namespace advise {

namespace detail {

// A child writes one of these: at most PIPE_BUF bytes, so that the write neither blocks nor is split.
struct message {
  bool failed = true;
  figures counted;
  std::array<char, 512> error{};
};

struct child {
  pid_t process = -1;
  int pipe = -1;
  std::size_t job = 0;
};

[[noreturn]] void fail_by_errno(char const* what) {
  throw std::system_error(errno, std::generic_category(), std::string("cannot ") + what);
}

[[noreturn]] void serve(std::function<figures()> const& job, int pipe) {
  message result;
  try {
    result.counted = job();
    result.failed = false;
  } catch (std::exception const& error) { std::snprintf(result.error.data(), result.error.size(), "%s", error.what()); }
  std::fflush(stderr);
  bool const written = write(pipe, &result, sizeof result) == static_cast<ssize_t>(sizeof result);
  _exit(written ? 0 : 1); // no destructors: the blocks of a failed replay are live
}

child start(std::function<figures()> const& job, std::size_t number) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) fail_by_errno("make a pipe");
  std::fflush(nullptr); // otherwise the child would print what lies in the buffers
  pid_t const process = fork();
  if (process == 0) {
    close(ends[0]);
    serve(job, ends[1]);
  }
  close(ends[1]);
  if (process > 0) return {process, ends[0], number};
  close(ends[0]);
  fail_by_errno("start a process");
}

// Returns the index of a child that has written its message, or has ended without one.
std::size_t wait_for_one(std::vector<child> const& running) {
  std::vector<pollfd> pipes;
  for (child const& each : running) pipes.push_back({.fd = each.pipe, .events = POLLIN, .revents = 0});
  while (poll(pipes.data(), pipes.size(), -1) < 0) {
    if (errno != EINTR) fail_by_errno("wait for a replay");
  }
  auto const ready = std::ranges::find_if(pipes, [](pollfd const& each) { return each.revents != 0; });
  return static_cast<std::size_t>(ready - pipes.begin());
}

// Waits for the child. Returns its message, or one with the reason why there is none.
message collect(child const& ended) {
  message result;
  int status = 0;
  while (waitpid(ended.process, &status, 0) < 0 && errno == EINTR) {}
  if (read(ended.pipe, &result, sizeof result) != static_cast<ssize_t>(sizeof result)) {
    result.failed = true;
    std::snprintf(result.error.data(), result.error.size(), "a replay ended by %s %d",
                  WIFSIGNALED(status) ? "signal" : "status",
                  WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
  }
  close(ended.pipe);
  return result;
}

inline constexpr std::size_t driver_sample = 20'000;

// Each call of cuMemAlloc makes the same driver calls, so that a part of a long trace tells them.
figures replay_driver(replay::loaded_trace const& trace) {
  std::size_t const calls = trace.operations.operations.size();
  if (calls <= driver_sample) return replay_over(trace, "cuda", 0);
  replay::loaded_trace const part{trace.name, trace.file, replay::first_operations(trace.operations, driver_sample)};
  return scaled_driver(trace.operations, replay_over(part, "cuda", 0), driver_sample);
}

} // namespace detail

unsigned processors() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return static_cast<unsigned>(std::max(CPU_COUNT(&set), 1));
}

std::vector<figures> run_jobs(std::vector<std::function<figures()>> const& jobs, std::function<void()> const& ended) {
  std::vector<figures> results(jobs.size());
  std::vector<detail::child> running;
  std::size_t failed = jobs.size(); // the first of the jobs that failed
  std::string error;
  for (std::size_t next = 0; next < jobs.size() || !running.empty();) {
    if (next < jobs.size() && running.size() < processors()) {
      running.push_back(detail::start(jobs[next], next));
      ++next;
      continue;
    }
    auto const ready = running.begin() + static_cast<std::ptrdiff_t>(detail::wait_for_one(running));
    detail::child const child = *ready;
    running.erase(ready);
    detail::message const result = detail::collect(child);
    results[child.job] = result.counted;
    if (result.failed && child.job < failed) {
      failed = child.job;
      error = result.error.data();
    }
    ended();
  }
  if (!error.empty()) throw std::runtime_error(error);
  return results;
}

figures replay_over(replay::loaded_trace const& trace, std::string_view resource, std::uint64_t limit) {
  replay::options chosen;
  if (limit != 0) chosen.limit = replay::limit_choice{.bytes = limit};
  auto const where = replay::choose_device(replay::device_choice::simulated);
  replay::progress none{1, nullptr};
  auto const counted = replay::count_pass({&trace, resource, &chosen, 1, &where, &none});
  replay::accept_unordered(trace.operations.frees_elsewhere != 0);
  return {.completed = !counted.failed,
          .reserved = counted.peak_reserved,
          .driver_calls = counted.driver_calls,
          .memory_calls = counted.memory_calls,
          .moved = counted.unmapped,
          .failed = counted.failed.value_or(0)};
}

void replay_all(replay::loaded_trace const& trace, std::vector<candidate>& all, std::uint64_t limit,
                replay::progress& shown) {
  std::vector<std::function<figures()>> jobs;
  std::vector<candidate*> replayed;
  for (candidate& each : all) {
    if (each.resource == "pool") continue; // see fill_default_pool()
    replayed.push_back(&each);
    if (each.resource == "cuda")
      jobs.emplace_back([&] { return detail::replay_driver(trace); });
    else if (each.resource == "limit")
      jobs.emplace_back([&, limit] { return replay_with_waits(trace, limit); });
    else
      jobs.emplace_back([&trace, &each] { return replay_over(trace, each.resource, 0); });
  }
  std::size_t ended = 0;
  auto const results = run_jobs(jobs, [&] {
    ++ended;
    shown.step(trace.name + ": " + std::to_string(ended) + " of " + std::to_string(jobs.size()) + " replays");
  });
  for (std::size_t i = 0; i < results.size(); ++i) replayed[i]->counted = results[i];
  fill_default_pool(all, trace.operations);
}

} // namespace advise
