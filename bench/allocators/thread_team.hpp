// Threads that start a sample of work together, and the time from the first start to the last end.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

namespace bench {

using clock = std::chrono::steady_clock;

/// Returns how many seconds `work` took.
template <class Work> double seconds_of(Work const& work) {
  auto const begin = clock::now();
  work();
  return std::chrono::duration<double>(clock::now() - begin).count();
}

/// Runs `prepare(i)`, which returns the work of thread i, in each thread; then runs all work at once. Returns seconds.
/// Rethrows an exception of a thread.
template <class Prepare> double run_together(std::size_t threads, Prepare const& prepare) {
  struct span {
    clock::time_point begin, end;
    std::exception_ptr failed;
  };
  std::vector<span> spans(threads);
  std::barrier start{static_cast<std::ptrdiff_t>(threads)};
  auto const body = [&](std::size_t i) {
    try {
      auto work = prepare(i);
      start.arrive_and_wait();
      spans[i].begin = clock::now();
      work();
      spans[i].end = clock::now();
    } catch (...) {
      spans[i].failed = std::current_exception();
      start.arrive_and_drop();
    }
  };
  std::vector<std::jthread> others;
  for (std::size_t i = 1; i < threads; ++i) others.emplace_back(body, i);
  body(0);
  others.clear();
  for (auto const& each : spans) {
    if (each.failed) std::rethrow_exception(each.failed);
  }
  auto const first = std::ranges::min(spans, {}, &span::begin).begin;
  return std::chrono::duration<double>(std::ranges::max(spans, {}, &span::end).end - first).count();
}

} // namespace bench
