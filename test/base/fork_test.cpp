// Errors in a forked child are reported without calling the CUDA runtime: a lock that the runtime held at the fork
// stays locked in the child.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <initializer_list>
#include <mutex>

#include <cuda.h>

import gpumem;

namespace {

std::mutex runtime;

// At each fork a thread holds the runtime's lock. Registered before gpumem's handler, so that it runs after that.
[[maybe_unused]] int const registered = pthread_atfork([] { runtime.lock(); }, [] { runtime.unlock(); }, nullptr);

} // namespace

// Replaces the runtime's function.
char const* cudaGetErrorString(cudaError_t) {
  std::scoped_lock const held{runtime};
  return "told by the runtime";
}

namespace {

// Runs the function in a child; returns its result, or -1 if it hangs.
template <class Function> int in_child(Function run) {
  auto const pid = fork();
  if (pid == 0) {
    alarm(10); // seconds, far more than it needs
    _exit(run());
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Returns 0 if `call` throws a cuda_error with this status and all these words.
template <class Function> int tells(Function call, CUresult status, std::initializer_list<char const*> words) {
  try {
    call();
    return 1;
  } catch (gpumem::cuda_error const& e) {
    if (static_cast<CUresult>(e.status()) != status) return 2;
    for (auto const* word : words) {
      if (!std::strstr(e.what(), word)) return 3;
    }
    return 0;
  } catch (...) { return 4; }
}

TEST(fork, child_gets_errors_as_exceptions) {
  gpumem::simulator::load();
  gpumem::driver_api::driver();
  gpumem::cuda_resource resource;
  gpumem::stream stream{gpumem::device{0}};
  EXPECT_EQ(in_child([] {
              return tells([] { gpumem::driver_api::check(CUDA_ERROR_INVALID_VALUE, "a call"); },
                           CUDA_ERROR_DEINITIALIZED, {"a call", "error 1", "forked"});
            }),
            0);
  EXPECT_EQ(in_child([&] {
              return tells([&] { (void)resource.allocate(stream, 1); }, CUDA_ERROR_DEINITIALIZED, {"error 4"});
            }),
            0);
  EXPECT_EQ(in_child([&] {
              return tells([&] { gpumem::sync_wait(gpumem::completion(stream)); }, CUDA_ERROR_DEINITIALIZED,
                           {"error 4"});
            }),
            0);
}

TEST(fork, parent_goes_on_after_a_fork) {
  gpumem::simulator::load();
  gpumem::driver_api::driver();
  EXPECT_EQ(in_child([] { return 0; }), 0);
  EXPECT_EQ(tells([] { gpumem::driver_api::check(CUDA_ERROR_INVALID_VALUE, "a call"); }, CUDA_ERROR_INVALID_VALUE,
                  {"a call", "told by the runtime"}),
            0);
}

} // namespace
