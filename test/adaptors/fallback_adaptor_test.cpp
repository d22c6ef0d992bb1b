// fallback_adaptor: when the second resource serves, where blocks go back, waiting, statistics.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>
#include <gpumem/services.hpp>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

import gpumem;

#include "../support/parking_resource.hpp"
#include "../support/thread_churn.hpp"

namespace fallback_test {

/// A resource without memory that records whether each request might wait on the host.
class empty_state : public gpumem::extend::shared_state {
public:
  gpumem::expected<void*, gpumem::failure> try_allocate(gpumem::extend::stream_key const& key, std::size_t bytes,
                                                        std::size_t) noexcept {
    waits.push_back(key.context().may_wait());
    return gpumem::unexpected<gpumem::failure>{gpumem::failure{gpumem::outcome::exhausted, 0, bytes}};
  }
  void deallocate(gpumem::extend::stream_key const&, void*, std::size_t, std::size_t) noexcept {}
  gpumem::device where() noexcept { return gpumem::device{0}; }
  std::vector<bool> waits;
};
class empty_resource
    : public gpumem::extend::resource_base<empty_resource, empty_state, gpumem::mr::device_accessible> {
public:
  empty_resource() : state_{new empty_state} {}
  empty_state& state() const noexcept { return *state_; }
  friend bool operator==(empty_resource const& a, empty_resource const& b) noexcept { return a.state_ == b.state_; }

private:
  gpumem::extend::state_ptr<empty_state> state_;
};

} // namespace fallback_test

namespace {

using namespace gpumem::literals;
using fallback_test::empty_resource;
using namespace std::chrono_literals;
namespace simulator = gpumem::simulator;

class fallback : public simulated {
protected:
  using counted_pool = gpumem::statistics_adaptor<gpumem::pool_resource<gpumem::cuda_resource>>;
  using counted_managed = gpumem::statistics_adaptor<gpumem::managed_resource>;
  gpumem::stream s_{gpumem::device{0}};
  counted_pool first_{gpumem::pool_resource{gpumem::cuda_resource{}, {.limit = 4_MiB}}};
  counted_managed second_{gpumem::managed_resource{}};
  gpumem::fallback_adaptor<counted_pool, counted_managed> subject_{first_, second_};
};

TEST_F(fallback, second_resource_serves_when_the_first_is_full) {
  void* const a = subject_.allocate(s_, 3_MiB);
  EXPECT_EQ(subject_.fallbacks(), 0u);
  void* const b = subject_.allocate(s_, 3_MiB);
  EXPECT_EQ(subject_.fallbacks(), 1u);
  EXPECT_EQ(first_.counters().bytes.value, static_cast<std::int64_t>(3_MiB));
  EXPECT_EQ(second_.counters().bytes.value, static_cast<std::int64_t>(3_MiB));
  subject_.deallocate(s_, a, 3_MiB);
  EXPECT_EQ(first_.counters().bytes.value, 0);
  void* const c = subject_.allocate(s_, 3_MiB); // the first has room again
  EXPECT_EQ(subject_.fallbacks(), 1u);
  subject_.deallocate(s_, b, 3_MiB);
  EXPECT_EQ(second_.counters().bytes.value, 0);
  subject_.deallocate(s_, c, 3_MiB);
  EXPECT_EQ(first_.counters().bytes.value, 0);
}

TEST_F(fallback, request_that_is_too_large_for_the_first_goes_to_the_second) {
  void* const p = subject_.allocate_sync(5_MiB);
  EXPECT_EQ(second_.counters().allocations.value, 1);
  subject_.deallocate_sync(p, 5_MiB);
  EXPECT_EQ(second_.counters().allocations.value, 0);
}

// The compiler refuses this if the types are not erased.
TEST_F(fallback, second_resource_must_be_accessible_where_the_first_is) {
  using gpumem::any_pool;
  any_pool const managed{gpumem::managed_resource{}}, plain{gpumem::cuda_resource{}};
  EXPECT_THROW((gpumem::fallback_adaptor{managed, plain}), std::invalid_argument);
  EXPECT_NO_THROW((gpumem::fallback_adaptor{plain, managed}));
  gpumem::extend::any_memory const host{gpumem::host_resource{}}, device{plain};
  EXPECT_THROW((gpumem::fallback_adaptor{device, host}), std::invalid_argument);
}

// One of the two gives memory that is valid only in the order of a stream.
TEST_F(fallback, memory_is_stream_ordered_if_that_of_one_resource_is) {
  auto const ordered = [](auto resource) {
    auto const from = resource.services();
    return from.table->traits(from.state).stream_ordered;
  };
  gpumem::cuda_resource const plain;
  gpumem::async_resource const later;
  EXPECT_FALSE(ordered(gpumem::fallback_adaptor{plain, plain}));
  EXPECT_TRUE(ordered(gpumem::fallback_adaptor{plain, later}));
  EXPECT_TRUE(ordered(gpumem::fallback_adaptor{gpumem::any_pool{later}, gpumem::any_pool{plain}}));
  EXPECT_FALSE(ordered(gpumem::fallback_adaptor{gpumem::any_pool{plain}, gpumem::any_pool{plain}}));
  static_assert(gpumem::fallback_adaptor<gpumem::cuda_resource, gpumem::async_resource>::stream_ordered);
}

TEST_F(fallback, statistics_are_sums) {
  void* const a = subject_.allocate(s_, 3_MiB);
  void* const b = subject_.allocate(s_, 2_MiB);
  EXPECT_EQ(subject_.statistics().live, 5_MiB);
  EXPECT_EQ(subject_.statistics().limit, 0u) << "the second has no limit";
  subject_.deallocate(s_, a, 3_MiB);
  subject_.deallocate(s_, b, 2_MiB);
  EXPECT_EQ(subject_.statistics().live, 0u);
  s_.synchronize();
  EXPECT_GT(subject_.trim(), 0u);
  EXPECT_EQ(subject_.statistics().reserved, 0u);
}

TEST_F(fallback, failure_is_that_of_the_first_unless_it_is_too_small) {
  gpumem::pool_resource one{gpumem::cuda_resource{}, {.limit = 4_MiB}};
  gpumem::pool_resource other{gpumem::cuda_resource{}, {.limit = 2_MiB}};
  gpumem::fallback_adaptor subject{one, other};
  EXPECT_EQ(subject.statistics().limit, 6_MiB);
  void* const p = subject.allocate(s_, 4_MiB);
  EXPECT_EQ(subject.try_allocate(s_, 3_MiB).error().reason, gpumem::outcome::exhausted);
  EXPECT_EQ(subject.try_allocate(s_, 5_MiB).error().reason, gpumem::outcome::too_large);
  void* const q = subject.allocate(s_, 2_MiB);
  EXPECT_THROW((void)subject.allocate(s_, 1_MiB), gpumem::out_of_memory);
  subject.deallocate(s_, p, 4_MiB);
  subject.deallocate(s_, q, 2_MiB);
}

// A request that both resources refuse is one failure, whichever of them is asked last.
TEST_F(fallback, request_counts_as_one_failure_at_most) {
  gpumem::pool_resource one{gpumem::cuda_resource{}, {.limit = 4_MiB}};
  gpumem::pool_resource other{gpumem::cuda_resource{}, {.limit = 6_MiB}};
  gpumem::fallback_adaptor subject{one, other};
  auto const failures = [&] { return subject.statistics().failures; };
  void* const p = subject.allocate(s_, 3_MiB);
  void* const q = subject.allocate(s_, 3_MiB);
  EXPECT_EQ(failures(), 0u) << "the second resource has served the request";
  EXPECT_EQ(subject.try_allocate(s_, 4_MiB).error().reason, gpumem::outcome::exhausted);
  EXPECT_EQ(failures(), 1u);
  EXPECT_EQ(subject.try_allocate(s_, 5_MiB).error().reason, gpumem::outcome::exhausted) << "too large for the first";
  EXPECT_EQ(failures(), 2u);
  EXPECT_EQ(subject.try_allocate(s_, 7_MiB).error().reason, gpumem::outcome::too_large);
  EXPECT_EQ(failures(), 3u);
  EXPECT_THROW((void)subject.allocate(s_, 4_MiB), gpumem::out_of_memory);
  EXPECT_EQ(failures(), 4u) << "the first was asked twice";
  EXPECT_THROW((void)subject.allocate(s_, 5_MiB), gpumem::out_of_memory);
  EXPECT_EQ(failures(), 5u) << "the second was asked twice";
  EXPECT_FALSE(gpumem::acquire(subject, s_, 4_MiB).try_now());
  EXPECT_EQ(failures(), 6u);
  auto const soon = std::chrono::steady_clock::now() + 1ms;
  EXPECT_THROW((void)gpumem::acquire(subject, s_, 4_MiB, {.deadline = soon}).wait(), gpumem::acquire_error);
  EXPECT_EQ(failures(), 7u) << "the end of the wait";
  subject.deallocate(s_, p, 3_MiB);
  subject.deallocate(s_, q, 3_MiB);
}

// The first attempt at the first resource is the only one then.
TEST_F(fallback, refusal_for_another_reason_is_a_failure) {
  auto const key = s_.key().as_trial();
  EXPECT_FALSE(key.context().ends_if(gpumem::outcome::exhausted));
  EXPECT_FALSE(key.context().ends_if(gpumem::outcome::too_large));
  EXPECT_TRUE(key.context().ends_if(gpumem::outcome::device_lost));
}

// A pool whose whole memory is free, but in use by a stream for `time`.
gpumem::pool_resource<gpumem::cuda_resource> pool_in_use(std::size_t bytes, gpumem::stream& by,
                                                         std::chrono::nanoseconds time) {
  gpumem::pool_resource pool{gpumem::cuda_resource{},
                             {.limit = bytes, .cross_stream = gpumem::reuse_policy::completed}};
  void* const block = pool.allocate(by, bytes);
  simulator::work(by, {simulator::write(block, bytes)}, time);
  pool.deallocate(by, block, bytes);
  return pool;
}

TEST_F(fallback, host_does_not_wait_for_the_first_while_the_second_has_memory) {
  empty_resource first;
  gpumem::fallback_adaptor subject{first, gpumem::managed_resource{}};
  void* const b = subject.allocate(s_, 4_MiB);
  EXPECT_EQ(subject.fallbacks(), 1u);
  EXPECT_EQ(first.state().waits, (std::vector<bool>{false}));
  subject.deallocate(s_, b, 4_MiB);
}

TEST_F(fallback, first_is_asked_again_with_leave_to_wait_after_both_have_failed) {
  empty_resource first, second;
  gpumem::fallback_adaptor subject{first, second};
  EXPECT_THROW((void)subject.allocate(s_, 4_MiB), gpumem::out_of_memory);
  EXPECT_EQ(first.state().waits, (std::vector<bool>{false, true}));
  EXPECT_EQ(second.state().waits, (std::vector<bool>{false}));
  EXPECT_FALSE(subject.try_allocate(s_, 4_MiB));
  EXPECT_EQ(first.state().waits, (std::vector<bool>{false, true, false})) << "it does not wait";
}

TEST_F(fallback, host_waits_for_the_second_if_the_request_is_too_large_for_the_first) {
  gpumem::stream other{gpumem::device{0}};
  gpumem::fallback_adaptor subject{gpumem::pool_resource{gpumem::cuda_resource{}, {.limit = 1_MiB}},
                                   pool_in_use(4_MiB, s_, 20ms)};
  void* b = nullptr;
  EXPECT_NO_THROW(b = subject.allocate(other, 4_MiB));
  EXPECT_EQ(subject.fallbacks(), 1u);
  subject.deallocate(other, b, 4_MiB);
}

TEST_F(fallback, host_waits_for_the_first_after_the_second_has_failed) {
  gpumem::stream other{gpumem::device{0}};
  gpumem::fallback_adaptor subject{pool_in_use(4_MiB, s_, 20ms),
                                   gpumem::pool_resource{gpumem::cuda_resource{}, {.limit = 1_MiB}}};
  void* b = nullptr;
  EXPECT_NO_THROW(b = subject.allocate(other, 4_MiB));
  EXPECT_EQ(subject.fallbacks(), 0u);
  subject.deallocate(other, b, 4_MiB);
}

TEST_F(fallback, other_failures_of_the_first_end_the_request) {
  gpumem::limiting_adaptor one{gpumem::cuda_resource{}, {.limit = 1_MiB}};
  gpumem::fallback_adaptor subject{one, gpumem::managed_resource{}};
  one.close();
  EXPECT_EQ(subject.try_allocate(s_, 1_KiB).error().reason, gpumem::outcome::closed);
  EXPECT_EQ(subject.fallbacks(), 0u);
}

TEST_F(fallback, request_waits_at_the_first_if_both_are_full) {
  test::parking_resource one{1000}, other{100};
  gpumem::fallback_adaptor subject{one, other};
  auto held = subject.acquire(s_, 1000).wait();
  auto second = subject.acquire(s_, 100).wait();
  EXPECT_EQ(subject.fallbacks(), 1u);
  std::thread waiting{[&] {
    auto const late = subject.acquire(s_, 50).wait();
    EXPECT_EQ(subject.fallbacks(), 1u);
  }};
  while (one.state().parked() == 0) std::this_thread::yield();
  EXPECT_FALSE(subject.acquire(s_, 1000).wait_until(gpumem::detail::sync::now() + 5ms)) << "it waits, and is withdrawn";
  held.reset();
  waiting.join();
  second.reset();
  EXPECT_EQ(one.state().read_statistics().live + other.state().read_statistics().live, 0u);
}

TEST_F(fallback, request_cannot_wait_if_the_first_cannot) {
  gpumem::fallback_adaptor subject{gpumem::any_pool{gpumem::cuda_resource{}}, gpumem::any_pool{first_}};
  EXPECT_THROW((void)subject.acquire(s_, 1_GiB * 1024 * 1024).wait(), gpumem::out_of_memory);
  auto const block = subject.acquire(s_, 1_MiB).wait();
  EXPECT_NE(block.data(), nullptr);
}

TEST_F(fallback, recorded_uses_reach_the_resource_of_the_block) {
  gpumem::pool_resource one{gpumem::cuda_resource{}, {.limit = 1_MiB}};
  gpumem::pool_resource other{gpumem::cuda_resource{}, {.limit = 4_MiB}};
  gpumem::fallback_adaptor subject{one, other};
  gpumem::stream user{gpumem::device{0}};
  for (std::size_t const bytes : {1_MiB, 4_MiB}) {
    for (int round = 0; round < 5; ++round) {
      void* const p = subject.allocate(s_, bytes);
      gpumem::event ready{gpumem::device{0}};
      ready.record(s_);
      user.wait(ready);
      simulator::work(user, {simulator::write(p, bytes)}, 20us);
      subject.record_use(p, user);
      subject.deallocate(s_, p, bytes);
    }
  }
  gpumem::fallback_adaptor over_managed{one, gpumem::managed_resource{}};
  void* const p = over_managed.allocate(s_, 2_MiB);
  EXPECT_THROW(over_managed.record_use(p, user), std::invalid_argument);
  over_managed.deallocate(s_, p, 2_MiB);
  user.synchronize();
}

TEST_F(fallback, blocks_go_back_to_their_resource_from_any_thread) {
  test::churn_by_threads(subject_, 8, 1_MiB);
  EXPECT_GT(subject_.fallbacks(), 0u) << "the test does not reach the second resource";
  EXPECT_EQ(first_.counters().bytes.value, 0);
  EXPECT_EQ(second_.counters().bytes.value, 0);
}

TEST_F(fallback, resources_of_two_devices_are_refused) {
  EXPECT_THROW((gpumem::fallback_adaptor{gpumem::cuda_resource{}, gpumem::cuda_resource{gpumem::device{1}}}),
               std::invalid_argument);
}

template <class A, class B>
concept may_back = requires(A a, B b) { gpumem::fallback_adaptor{a, b}; };
static_assert(may_back<gpumem::cuda_resource, gpumem::managed_resource>);
static_assert(!may_back<gpumem::cuda_resource, gpumem::host_resource>, "the device cannot read it");
static_assert(!may_back<gpumem::managed_resource, gpumem::cuda_resource>, "the host cannot read it");

TEST_F(fallback, copies_are_equal_and_it_lives_until_its_last_block) {
  auto const copy = subject_;
  EXPECT_TRUE(copy == subject_);
  gpumem::allocation kept;
  {
    gpumem::fallback_adaptor subject{test::parking_resource{10}, test::parking_resource{100}};
    kept = subject.acquire(s_, 50).wait();
  }
  kept.reset();
  EXPECT_FALSE(kept);
}

} // namespace
