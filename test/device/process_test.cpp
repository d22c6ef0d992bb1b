// A fork or a reset ends a process's use of a real device. Each test runs in a process of its own.
// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

import gpumem;

using namespace gpumem;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

// Returns the text of the exception; empty if there is none.
template <class Function> std::string told(Function run) {
  try {
    run();
  } catch (std::exception const& e) { return e.what(); }
  return "";
}

bool says(std::string const& text, char const* what) {
  bool const found = text.find(what) != std::string::npos;
  if (!found) std::fprintf(stderr, "missing text: '%s' in '%s'\n", what, text.c_str());
  return found;
}

void end_with(bool right) { std::_Exit(right ? 0 : 1); }

void reset_the_device() {
  constexpr char const* sentence = "was reset; restart the process";
  pool_resource pool{device{0}}, idle{device{0}};
  stream stream{device{0}};
  auto* const block = pool.allocate(stream, mib);
  bool right = cudaDeviceReset() == cudaSuccess;
  right = says(told([&] { (void)pool.allocate(stream, 64 * mib); }), sentence) && right;
  // The CUDA runtime makes the context active again, with the same handle.
  right = cudaFree(nullptr) == cudaSuccess && right;
  right = says(told([&] { (void)idle.allocate(stream, mib); }), sentence) && right;
  right = says(told([] { pool_resource{device{0}}; }), sentence) && right;
  right = says(told([&] { stream.synchronize(); }), sentence) && right;
  pool.deallocate(stream, block, mib);
  end_with(right);
}

void fork_a_user() {
  static pool_resource pool{device{0}};
  static stream used{device{0}};
  pool.deallocate(used, pool.allocate(used, mib), mib);
  auto const child = fork();
  if (child == 0) {
    alarm(20);
    bool right = pool.statistics().reserved == 0;
    right = says(told([] { pool_resource{device{0}}; }), "was forked after gpumem was used") && right;
    right = says(told([] { (void)pool.allocate(used, mib); }), "") && !pool.try_allocate(used, mib) && right;
    std::exit(right ? 0 : 1); // runs the destructors of static objects
  }
  int status = 0;
  bool const ended = waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  pool.deallocate(used, pool.allocate(used, mib), mib);
  used.synchronize();
  end_with(ended);
}

} // namespace

class process_on_device : public device_test {
protected:
  void SetUp() override {
    device_test::SetUp();
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};

TEST_F(process_on_device, device_reset_is_reported_in_one_sentence) {
  EXPECT_EXIT(reset_the_device(), testing::ExitedWithCode(0), "");
}

TEST_F(process_on_device, forked_child_returns_from_every_call) {
  EXPECT_EXIT(fork_a_user(), testing::ExitedWithCode(0), "");
}
