// sync_wait with stepping::manual: the simulated device says on stderr why the thread waits.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/simulator.hpp>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

import gpumem;

namespace {

namespace simulator = gpumem::simulator;

// Stderr as a pipe while it lives, so that a thread can wait for a line.
class stderr_lines {
public:
  stderr_lines() {
    EXPECT_EQ(::pipe(ends_.data()), 0);
    ::dup2(ends_[1], STDERR_FILENO);
  }
  stderr_lines(stderr_lines const&) = delete;
  stderr_lines& operator=(stderr_lines const&) = delete;
  ~stderr_lines() {
    ::dup2(before_, STDERR_FILENO);
    for (int const each : {before_, ends_[0], ends_[1]}) ::close(each);
  }
  std::string next() const {
    std::string line;
    for (char one = 0; one != '\n' && ::read(ends_[0], &one, 1) == 1;) line += one;
    return line;
  }

private:
  int before_ = ::dup(STDERR_FILENO);
  std::array<int, 2> ends_{};
};

TEST(manual_stepping, sync_wait_says_why_it_waits_and_ends_after_the_steps_of_another_thread) {
  simulator::load({.mode = simulator::stepping::manual, .stall_timeout = std::chrono::milliseconds{20}});
  gpumem::device const card{0};
  gpumem::stream stream{card};
  simulator::work(stream, {});
  std::atomic<bool> ended{false};
  stderr_lines const told;
  std::thread waiting{[&] {
    gpumem::sync_wait(gpumem::completion(stream));
    ended = true;
  }};
  EXPECT_THAT(told.next(), testing::HasSubstr("as in sync_wait, waits until another thread calls step()"));
  EXPECT_FALSE(ended);
  simulator::run_until_idle();
  waiting.join();
  EXPECT_TRUE(ended);
}

} // namespace
