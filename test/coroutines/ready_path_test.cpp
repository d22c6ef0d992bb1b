// Awaits that need not wait: they neither suspend nor allocate on the host.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <coroutine>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <new>
#include <stop_token>
#include <utility>

#include <cuda.h>

import gpumem;
#include "../support/allocation_count.hpp"
#include "../support/parking_resource.hpp"

namespace {

using gpumem::completion;
using gpumem::sync_wait;
using gpumem::task;

// The test steps the device: allocations of device work on this thread would be counted too.
class stepped_device final : public testing::Environment {
public:
  void SetUp() override { gpumem::simulator::load({.mode = gpumem::simulator::stepping::manual}); }
};
[[maybe_unused]] auto* const registered = testing::AddGlobalTestEnvironment(new stepped_device);

// Awaits 100 times, after 3 warm-up awaits. Returns the host allocations of the 100.
template <class Make> task<std::size_t> allocations_of(Make make) {
  for (int i = 0; i < 3; ++i) (void)co_await make();
  auto const before = test::host_allocations();
  for (int i = 0; i < 100; ++i) (void)co_await make();
  co_return test::host_allocations() - before;
}

class ready_path : public testing::Test {
protected:
  void SetUp() override { gpumem::simulator::run_until_idle(); } // completes the work of the stream's last user
  gpumem::stream stream{gpumem::device{0}};
  gpumem::pool_resource<gpumem::cuda_resource> pool{gpumem::cuda_resource{gpumem::device{0}}};
};

TEST_F(ready_path, host_allocations_are_counted) {
  auto const before = test::host_allocations();
  ::operator delete(::operator new(1));
  EXPECT_EQ(test::host_allocations(), before + 1);
}

TEST_F(ready_path, acquire_makes_no_host_allocation) {
  test::parking_resource resource{1 << 20};
  std::stop_source source;
  EXPECT_EQ(sync_wait(allocations_of([&] { return resource.acquire(stream, 256); })), 0u);
  EXPECT_EQ(sync_wait(allocations_of([&] { return gpumem::acquire(resource, stream, 256, {}, source.get_token()); })),
            0u);
}

TEST_F(ready_path, acquire_on_a_foreign_stream_makes_no_host_allocation) {
  test::parking_resource resource{1 << 20};
  gpumem::device_guard const here{gpumem::device{0}};
  CUstream raw = nullptr;
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_create(&raw, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  EXPECT_EQ(sync_wait(allocations_of([&] { return resource.acquire(gpumem::stream_ref{raw}, 256); })), 0u);
}

TEST_F(ready_path, acquire_makes_no_more_host_allocations_than_allocate) {
  for (std::size_t const bytes : {std::size_t{256}, std::size_t{1} << 20}) {
    auto const make = [&] { return pool.acquire(stream, bytes); };
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(make().try_now());
    auto const before = test::host_allocations();
    for (int i = 0; i < 100; ++i) static_cast<void>(make().try_now());
    auto const plain = test::host_allocations() - before;
    EXPECT_EQ(sync_wait(allocations_of(make)), plain);
  }
}

TEST_F(ready_path, granted_block_that_is_not_taken_is_freed) {
  {
    auto const what = pool.acquire(stream, 256);
    auto operation = what.operator co_await();
    EXPECT_TRUE(operation.await_ready());
    EXPECT_EQ(pool.statistics().live, 256u);
  }
  EXPECT_EQ(pool.statistics().live, 0u);
}

TEST_F(ready_path, request_that_is_too_large_is_refused_once) {
  auto const failures = pool.statistics().failures;
  auto const ask = [&]() -> task<gpumem::outcome> {
    try {
      (void)co_await pool.acquire(stream, std::size_t{1} << 60);
    } catch (gpumem::out_of_memory const& e) { co_return e.reason(); }
    co_return gpumem::outcome::granted;
  };
  EXPECT_EQ(sync_wait(ask()), gpumem::outcome::too_large);
  EXPECT_LE(pool.statistics().failures, failures + 1);
  EXPECT_EQ(pool.statistics().waiting, 0u);
}

TEST_F(ready_path, completion_makes_no_host_allocation) {
  std::stop_source source;
  gpumem::event event{gpumem::device{0}};
  event.record(stream);
  stream.synchronize();
  auto const records = gpumem::driver_api::driver_calls("cuEventRecord");
  EXPECT_EQ(sync_wait(allocations_of([&] { return completion(stream); })), 0u);
  EXPECT_EQ(sync_wait(allocations_of([&] { return completion(event); })), 0u);
  EXPECT_EQ(sync_wait(allocations_of([&] { return completion(stream, {}, source.get_token()); })), 0u);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuEventRecord"), records);
}

TEST_F(ready_path, acquire_and_completion_do_not_suspend) {
  struct counting {
    struct promise_type {
      int suspensions = 0;
      counting get_return_object() { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
      std::suspend_never initial_suspend() noexcept { return {}; }
      std::suspend_always final_suspend() noexcept { return {}; }
      void return_void() noexcept {}
      void unhandled_exception() { throw; }
    };
    std::coroutine_handle<promise_type> frame;
  };
  auto body = [&]() -> counting {
    for (int i = 0; i < 10; ++i) {
      auto const block = co_await pool.acquire(stream, 4096);
      co_await completion(stream);
    }
  };
  auto const running = body(); // it ends within the call, or it was suspended
  EXPECT_TRUE(running.frame.done());
  running.frame.destroy();
}

} // namespace
