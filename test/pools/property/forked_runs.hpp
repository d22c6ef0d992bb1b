// Runs programs in forked children. Each starts from the same state, so that a seed can be replayed alone, and a crash
// names its seed.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "program.hpp"

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>

namespace gpumem_test {

// Runs `work` for seeds in children, one per processor, and returns their results in the order of the seeds. This
// process must have only one thread.
class forked_runs {
public:
  using work = std::function<program_result(std::uint64_t seed)>;

  explicit forked_runs(work what);
  ~forked_runs();
  forked_runs(forked_runs const&) = delete;
  forked_runs& operator=(forked_runs const&) = delete;

  std::size_t at_once() const noexcept { return processors_; }
  std::size_t running() const noexcept { return running_.size(); }
  void start(std::uint64_t seed);
  // Returns the result of the child that was started first. A child that crashed, or ran for half a minute, has failed.
  program_result finish_first();

private:
  struct child {
    std::uint64_t seed;
    pid_t process;
    int output;
  };
  work const what_;
  std::size_t const processors_;
  std::uint64_t started_ = 0;
  std::deque<child> running_;
};

} // namespace gpumem_test
