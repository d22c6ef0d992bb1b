// simulator::checked over resources of gpumem: requests wait through it, and it reports their blocks.
// SPDX-License-Identifier: Apache-2.0
#include "../pools/upstream.hpp"

#include <gpumem/pool_options.hpp>
#include <gpumem/services.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <thread>
#include <type_traits>
#include <utility>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "../pools/waiting_fixture.hpp"

namespace {

using gpumem::outcome;
using gpumem::pool_resource;
using gpumem_test::MiB;
namespace simulator = gpumem::simulator;
using simulator::finding_kind;
namespace mr = gpumem::mr;

class checked_waits : public gpumem_test::waiting_fixture {
protected:
  // The base expects that the test has no pool any more.
  void TearDown() override {
    { auto const last_handles = std::pair{std::move(checked), std::move(pool)}; }
    waiting_fixture::TearDown();
  }
  /// Takes and returns the only finding.
  static simulator::finding only_finding() {
    auto found = simulator::take_findings();
    EXPECT_EQ(found.size(), 1u);
    return found.empty() ? simulator::finding{} : std::move(found.front());
  }
  static void writes(gpumem::stream& on, gpumem::allocation const& block) {
    simulator::work(on, {simulator::write(block.data(), block.bytes())});
  }

  /// `subject` and `other` are over `pool` of 100 MiB. A request of `subject` waits for memory of `other`.
  template <class Subject, class Other> void expect_wait(Subject subject, Other other) {
    auto block = other.acquire(a, 60 * MiB).wait();
    writes(a, block);
    request second{*this, subject, b, 60 * MiB};
    let_the_library_thread_poll();
    EXPECT_FALSE(second.ended());
    EXPECT_EQ(pool.statistics().waiting, 1u);
    block.reset();
    EXPECT_FALSE(second.ended()) << "resumed inside the free";
    run_all();
    ASSERT_EQ(second.ended(), outcome::granted);
    writes(b, second.block());
    simulator::expect_silent();
    writes(a, second.block());
    auto const found = only_finding();
    EXPECT_EQ(found.kind, finding_kind::unordered_access);
    EXPECT_EQ(found.block_address, second.block().address());
    EXPECT_EQ(found.block_bytes, 60 * MiB);
    EXPECT_EQ(found.earlier.stream, b.key().identity().id());
    a.synchronize();
  }

  template <class Subject> void expect_wait(Subject subject) { expect_wait(subject, subject); }

  pool_resource<gpumem::cuda_resource> pool{device, {.limit = 100 * MiB}};
  simulator::checked<pool_resource<gpumem::cuda_resource>> checked{pool};
};

TEST_F(checked_waits, request_waits_and_its_block_is_checked) { expect_wait(checked); }
TEST_F(checked_waits, request_of_a_scope_waits) {
  gpumem::scope unit{checked, "batch"};
  expect_wait(unit, checked); // a scope that holds the memory itself would wait for ever
  EXPECT_EQ(unit.held(), 0u);
}
TEST_F(checked_waits, request_waits_below_and_above_other_adaptors) {
  expect_wait(gpumem::statistics_adaptor{checked});
  expect_wait(simulator::checked{gpumem::statistics_adaptor{pool}});
}

TEST_F(checked_waits, request_waits_through_an_erased_handle) {
  gpumem::any_pool erased{checked};
  auto block = gpumem::acquire(erased, a, 60 * MiB).wait();
  std::optional<std::size_t> got;
  auto body = [&]() -> gpumem::task<> {
    got = (co_await gpumem::acquire(erased, b, 60 * MiB, {.resume_on = &executor})).bytes();
  };
  auto const running = test::start(body());
  EXPECT_FALSE(got);
  block.reset();
  run_all();
  EXPECT_EQ(got, 60 * MiB);
}

TEST_F(checked_waits, first_use_of_an_acquired_block_is_checked) {
  auto block = checked.acquire(a, MiB).wait();
  writes(b, block);
  auto const found = only_finding();
  EXPECT_EQ(found.kind, finding_kind::unordered_access);
  EXPECT_EQ(found.earlier.action, "allocation");
  b.synchronize();
}

TEST_F(checked_waits, free_of_an_acquired_block_is_checked) {
  auto block = checked.acquire(a, MiB).wait();
  a.synchronize();
  writes(b, block);
  block.reset();
  auto const found = only_finding();
  EXPECT_EQ(found.kind, finding_kind::unordered_free);
  EXPECT_EQ(found.earlier.stream, b.key().identity().id());
  EXPECT_EQ(found.later.action, "free");
  b.synchronize();
}

TEST_F(checked_waits, use_after_the_free_of_an_acquired_block_is_found) {
  auto block = checked.acquire(a, MiB).wait();
  auto* const data = block.data();
  block.reset();
  simulator::work(a, {simulator::read(data, 64)});
  EXPECT_EQ(only_finding().kind, finding_kind::use_after_free);
  a.synchronize();
}

TEST_F(checked_waits, each_block_of_a_request_is_checked) {
  auto blocks = checked.acquire_all({{a, MiB}, {b, 2 * MiB}}).wait();
  writes(a, blocks[0]);
  writes(b, blocks[1]);
  simulator::expect_silent();
  writes(a, blocks[1]);
  EXPECT_EQ(only_finding().block_bytes, 2 * MiB);
  a.synchronize();
}

TEST_F(checked_waits, stopped_and_destroyed_requests_leave_no_block) {
  auto block = checked.acquire(a, 60 * MiB).wait();
  std::stop_source source;
  request stopped{*this, checked, b, 60 * MiB, source.get_token()};
  std::optional<request> destroyed{std::in_place, *this, checked, b, 60 * MiB};
  source.request_stop();
  destroyed.reset();
  run_all();
  EXPECT_EQ(pool.statistics().waiting, 0u);
  writes(a, block);
  block.reset();
  EXPECT_EQ(pool.statistics().live, 0u);
  auto const whole = checked.acquire(a, 100 * MiB).wait();
  writes(a, whole);
}

TEST_F(checked_waits, declared_use_is_allowed_at_the_free) {
  auto block = checked.acquire(a, MiB).wait();
  a.synchronize();
  writes(b, block);
  checked.record_use(block.data(), b);
  block.reset();
  b.synchronize();
}

TEST_F(checked_waits, block_may_be_freed_without_its_size) {
  void* const p = checked.allocate(a, MiB);
  checked.deallocate(a, p);
  EXPECT_EQ(pool.statistics().live, 0u);
  simulator::work(a, {simulator::read(p, 64)});
  EXPECT_EQ(only_finding().kind, finding_kind::use_after_free);
  a.synchronize();
}

TEST_F(checked_waits, block_outlives_all_handles) {
  auto block = simulator::checked{pool_resource{device}}.acquire(a, MiB).wait();
  writes(a, block);
}

TEST_F(checked_waits, requests_of_the_host_are_the_hosts) {
  void* const p = checked.allocate_sync(MiB);
  simulator::work(a, {simulator::write(p, MiB)});
  checked.deallocate_sync(p, MiB);
  auto const found = only_finding();
  EXPECT_EQ(found.kind, finding_kind::unordered_free);
  EXPECT_EQ(found.later.stream, 0u);
  a.synchronize();
}

TEST_F(checked_waits, copies_are_equal_and_others_are_not) {
  auto const copy = checked;
  EXPECT_EQ(copy, checked);
  EXPECT_NE(simulator::checked{pool}, checked);
  EXPECT_EQ(checked.upstream_resource(), pool);
}

TEST_F(checked_waits, request_over_an_erased_resource_does_not_wait) {
  gpumem::any_pool erased{pool};
  simulator::checked<gpumem::any_pool> subject{erased};
  auto const block = gpumem::acquire(subject, a, 60 * MiB).wait();
  request second{*this, gpumem::statistics_adaptor{subject}, b, 60 * MiB};
  EXPECT_EQ(second.ended(), outcome::exhausted);
}

TEST_F(checked_waits, adaptor_of_an_erased_pool_is_never_empty) {
  gpumem::any_pool erased{pool};
  simulator::checked subject{erased};
  simulator::checked const other{std::move(subject)};
  EXPECT_TRUE(subject == other) << "a move is a copy";
  subject.deallocate(a, subject.allocate(a, 1 * MiB), 1 * MiB);
  EXPECT_TRUE(gpumem::statistics_adaptor{subject}.try_allocate(a, 0));
  [[maybe_unused]] gpumem::any_pool const moved{std::move(erased)};
  EXPECT_THROW(simulator::checked{erased}, std::invalid_argument);
}

using over_pool = simulator::checked<pool_resource<gpumem::cuda_resource>>;
static_assert(mr::resource_with<over_pool, mr::device_accessible>);
static_assert(!mr::has_property<over_pool, mr::host_accessible>);
static_assert(mr::has_property<simulator::checked<gpumem::pinned_resource>, mr::host_accessible>);
static_assert(std::is_same_v<decltype(simulator::checked{std::declval<over_pool&>()}), over_pool>);

} // namespace
