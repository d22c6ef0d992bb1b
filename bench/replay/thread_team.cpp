// Starts, times and ends the threads of a team.
// SPDX-License-Identifier: Apache-2.0
module;

#include <algorithm>
#include <barrier>
#include <chrono>
#include <exception>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

module replay:thread_team.impl;

import :thread_team;

namespace replay {

thread_team::thread_team(unsigned size, member_setup const& setup) : spans_(size), start_(size), finish_(size) {
  for (unsigned member = 1; member < size; ++member) {
    threads_.emplace_back([this, member, setup] {
      // a member whose setup fails must still meet the others at the barriers; it throws in its first pass
      bool served = false;
      try {
        setup([&] {
          served = true;
          serve(member);
        });
      } catch (...) {
        if (served) return;
        spans_[member].error = std::current_exception();
        serve(member);
      }
    });
  }
}

thread_team::~thread_team() {
  body_ = nullptr;
  start_.arrive_and_wait();
  for (std::thread& each : threads_) each.join();
}

void thread_team::serve(unsigned member) {
  for (;;) {
    start_.arrive_and_wait();
    if (body_ == nullptr) return;
    run_one(member);
    finish_.arrive_and_wait();
  }
}

void thread_team::run_one(unsigned member) noexcept {
  span& mine = spans_[member];
  if (mine.error) return;
  mine.begin = clock::now();
  try {
    (*body_)(member);
  } catch (...) { mine.error = std::current_exception(); }
  mine.end = clock::now();
}

double thread_team::run(std::function<void(unsigned)> const& body) {
  body_ = &body;
  start_.arrive_and_wait();
  run_one(0);
  finish_.arrive_and_wait();
  for (span& each : spans_) {
    if (each.error) std::rethrow_exception(std::exchange(each.error, nullptr));
  }
  auto const [first, ignored] =
      std::minmax_element(spans_.begin(), spans_.end(), [](span const& a, span const& b) { return a.begin < b.begin; });
  auto const [unused, last] =
      std::minmax_element(spans_.begin(), spans_.end(), [](span const& a, span const& b) { return a.end < b.end; });
  return std::chrono::duration<double, std::nano>(last->end - first->begin).count();
}

} // namespace replay
