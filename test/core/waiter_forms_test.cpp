// Waiting for memory through adaptors and type-erased forms of a parking_resource.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/services.hpp>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include <cuda.h>

import gpumem;
#include "../support/allocation_count.hpp"
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "../support/parking_resource.hpp"
#include "waiter_fixture.hpp"

namespace {

using gpumem::allocation;
using gpumem::sync_wait;
using gpumem::task;
using test::manual_executor;
using test::parking_resource;

class waiter_forms : public test::waiter_fixture {};

using counting = test::counting_adaptor<parking_resource>;

TEST_F(waiter_forms, adaptors_count_a_request_at_its_grant) {
  counting inner{resource};
  test::counting_adaptor<counting> outer{inner};
  auto block = outer.acquire(stream, 1024).wait();
  EXPECT_EQ(inner.state().live(), 1);
  EXPECT_EQ(outer.state().live(), 1);
  allocation mine;
  auto body = [&]() -> task<> { mine = co_await outer.acquire(stream, 10, {.resume_on = &executor}); };
  {
    auto const abandoned = test::start(body());
    EXPECT_EQ(resource.state().parked(), 1u);
    EXPECT_EQ(inner.state().live(), 1);
    EXPECT_EQ(outer.state().live(), 1); // the request waits, so it is not counted yet
  }
  auto const running = test::start(body());
  block.reset();
  EXPECT_EQ(inner.state().live(), 1); // one freed, one granted
  EXPECT_EQ(outer.state().live(), 1);
  executor.run_one();
  mine.reset();
  EXPECT_EQ(inner.state().live(), 0);
  EXPECT_EQ(outer.state().live(), 0);
}

// Returns the host allocations of 100 requests that are granted at once, and of their frees.
template <class Form> std::size_t allocations_when_ready(Form& form, gpumem::stream_ref stream) {
  auto body = [&]() -> task<std::size_t> {
    (co_await gpumem::acquire(form, stream, 64)).reset(); // warm-up: what the first use creates
    auto const before = test::host_allocations();
    for (int i = 0; i < 100; ++i) {
      auto const awaited = co_await gpumem::acquire(form, stream, 64);
      auto const waited_for = gpumem::acquire(form, stream, 64).wait();
      auto const asked_for = gpumem::acquire(form, stream, 64).try_now();
      EXPECT_TRUE(awaited && waited_for && *asked_for);
    }
    co_return test::host_allocations() - before;
  };
  return sync_wait(body());
}

TEST_F(waiter_forms, acquire_of_free_memory_makes_no_host_allocation) {
  gpumem::device_guard const scope{gpumem::device{0}};
  CUstream raw = nullptr;
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_create(&raw, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  gpumem::any_pool any{resource};
  gpumem::pool_ref ref{resource};
  gpumem::mr::any_resource<gpumem::mr::device_accessible> narrowed{any};
  counting counted{resource};
  gpumem::any_pool any_counted{counted};
  for (gpumem::stream_ref const on :
       {gpumem::stream_ref{stream}, gpumem::stream_ref{raw}, gpumem::stream_ref{CU_STREAM_PER_THREAD}}) {
    EXPECT_EQ(allocations_when_ready(resource, on), 0u);
    EXPECT_EQ(allocations_when_ready(any, on), 0u);
    EXPECT_EQ(allocations_when_ready(ref, on), 0u);
    EXPECT_EQ(allocations_when_ready(narrowed, on), 0u);
    EXPECT_EQ(allocations_when_ready(counted, on), 0u);
    EXPECT_EQ(allocations_when_ready(any_counted, on), 0u);
  }
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_destroy(raw), "cuStreamDestroy");
}

// Parks a request through any form of the resource, and grants it.
template <class Form> void park_and_grant(Form& form, parking_resource& resource, gpumem::stream& stream) {
  auto block = resource.acquire(stream, 1024).wait();
  manual_executor executor;
  bool granted = false;
  auto body = [&]() -> task<> {
    auto const mine = co_await gpumem::acquire(form, stream, 10, {.resume_on = &executor});
    granted = mine.bytes() == 10;
  };
  auto const parked_before = resource.state().parked();
  auto const running = test::start(body());
  ASSERT_EQ(resource.state().parked(), parked_before + 1);
  block.reset();
  executor.run_one();
  EXPECT_TRUE(granted);
}

TEST_F(waiter_forms, request_waits_through_every_handle_with_services) {
  gpumem::any_pool any{resource};
  gpumem::pool_ref ref{resource};
  gpumem::mr::any_resource<gpumem::mr::device_accessible> narrowed{any};
  gpumem::mr::resource_ref<gpumem::mr::device_accessible> narrowed_ref{ref};
  counting counted{resource};
  gpumem::any_pool any_counted{counted};
  park_and_grant(resource, resource, stream);
  park_and_grant(any, resource, stream);
  park_and_grant(ref, resource, stream);
  park_and_grant(narrowed, resource, stream);
  park_and_grant(narrowed_ref, resource, stream);
  park_and_grant(counted, resource, stream);
  park_and_grant(any_counted, resource, stream);
  EXPECT_EQ(counted.state().live(), 0);
  EXPECT_EQ(gpumem::statistics_of(narrowed)->limit, 1024u);
}

TEST_F(waiter_forms, request_through_a_cccl_handle_is_granted_at_once_or_throws) {
  gpumem::mr::any_resource<gpumem::mr::device_accessible> erased{resource};
  EXPECT_EQ(sync_wait(gpumem::acquire(erased, stream, 10)).bytes(), 10u);
  auto block = resource.acquire(stream, 1024).wait();
  EXPECT_THROW((void)sync_wait(gpumem::acquire(erased, stream, 10)), gpumem::out_of_memory);
  EXPECT_EQ(resource.state().parked(), 0u);
  EXPECT_FALSE(gpumem::statistics_of(erased)) << "the plain erased type has lost the statistics, which is not silent";
  gpumem::statistics_adaptor over{erased};
  EXPECT_FALSE(over.statistics()) << "nor is an adaptor over it";
  EXPECT_FALSE(gpumem::statistics_of(over));
  block.reset();
}

// A user's limiter, which forwards every property of its upstream.
class users_limiter : public cuda::forward_property<users_limiter, parking_resource> {
public:
  explicit users_limiter(parking_resource upstream) : upstream_{std::move(upstream)} {}
  void* allocate(gpumem::stream_ref stream, std::size_t bytes, std::size_t alignment) {
    ++*calls_;
    return upstream_.allocate(stream, bytes, alignment);
  }
  void deallocate(gpumem::stream_ref stream, void* p, std::size_t bytes, std::size_t alignment) noexcept {
    ++*calls_;
    upstream_.deallocate(stream, p, bytes, alignment);
  }
  void* allocate_sync(std::size_t bytes, std::size_t alignment) { return upstream_.allocate_sync(bytes, alignment); }
  void deallocate_sync(void* p, std::size_t bytes, std::size_t alignment) noexcept {
    upstream_.deallocate_sync(p, bytes, alignment);
  }
  parking_resource const& upstream_resource() const noexcept { return upstream_; }
  bool operator==(users_limiter const& other) const noexcept { return upstream_ == other.upstream_; }
  int calls() const noexcept { return *calls_; }

private:
  parking_resource upstream_;
  std::shared_ptr<int> calls_ = std::make_shared<int>(0);
};

TEST_F(waiter_forms, adaptor_that_forwards_properties_is_not_bypassed) {
  users_limiter limiter{resource};
  gpumem::any_pool any{limiter};
  gpumem::mr::resource_ref<gpumem::mr::device_accessible> ref{limiter};
  static_assert(gpumem::mr::has_property<users_limiter, gpumem::extend::services>); // the property is forwarded …
  EXPECT_EQ(gpumem::extend::find_services(any).table, nullptr);                     // … but not used
  sync_wait(gpumem::acquire(limiter, stream, 10)).reset();
  EXPECT_EQ(limiter.calls(), 2);
  sync_wait(gpumem::acquire(any, stream, 10)).reset();
  EXPECT_EQ(limiter.calls(), 4);
  sync_wait(gpumem::acquire(ref, stream, 10)).reset();
  EXPECT_EQ(limiter.calls(), 6);
}

} // namespace
