// Deadlines of requests that resume on the thread where their timer expires.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "../support/parking_resource.hpp"
#include "waiter_fixture.hpp"

namespace {

using namespace std::chrono_literals;
using gpumem::outcome;
using gpumem::sync_wait;
using gpumem::task;

class waiter_deadline : public test::waiter_fixture {
protected:
  // Makes `times` requests for more memory than there is, each in the same place of one frame. Returns how many ended
  // by their deadline.
  task<int> ask(int times, gpumem::executor* where) {
    int late = 0;
    for (int i = 0; i < times; ++i) {
      try {
        (void)co_await resource.acquire(stream, 1024,
                                        {.resume_on = where, .deadline = gpumem::detail::sync::now() + 20us});
      } catch (gpumem::acquire_error const& e) { late += e.reason() == outcome::deadline; }
    }
    co_return late;
  }
};

TEST_F(waiter_deadline, deadline_resumes_a_request_inside_its_timer_callback) {
  // Inline: while the timer expires, the operation is destroyed and another one is made in its place.
  auto const block = resource.acquire(stream, 512).wait();
  static auto& here = *new gpumem::inline_executor; // outlives the library thread, which flushes it
  EXPECT_EQ(sync_wait(ask(200, &here)), 200);
  EXPECT_TRUE(resource.state().idle());
}

TEST_F(waiter_deadline, deadline_resumes_a_request_on_the_library_thread) {
  auto const block = resource.acquire(stream, 512).wait();
  EXPECT_EQ(sync_wait(ask(200, nullptr)), 200);
  EXPECT_TRUE(resource.state().idle());
}

TEST_F(waiter_deadline, deadline_resumes_a_request_on_another_thread_during_its_timer_callback) {
  auto const block = resource.acquire(stream, 512).wait();
  gpumem::thread_executor elsewhere;
  EXPECT_EQ(sync_wait(ask(200, &elsewhere)), 200);
  EXPECT_TRUE(resource.state().idle());
}

} // namespace
