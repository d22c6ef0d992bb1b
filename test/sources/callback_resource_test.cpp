// callback_resource: what the functions are given, and what becomes of their failures.
// SPDX-License-Identifier: Apache-2.0
#include "../support/failing_new.hpp"
#include "../support/simulated.hpp"

#include <gpumem/services.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;
#include "recorded_misuse.hpp"

namespace {

namespace simulator = gpumem::simulator;
using gpumem::outcome;
using test::recorded_misuse;
using test::seen;
using namespace std::chrono_literals;

constexpr std::size_t mib = std::size_t{1024} * 1024;

struct call {
  CUstream stream;
  void* pointer;
  std::size_t bytes;
  std::size_t alignment;
  friend bool operator==(call const&, call const&) = default;
};

/// The functions get memory from the default driver pool, and note their calls.
class callback_resource : public simulated {
protected:
  gpumem::callback_resource<gpumem::mr::device_accessible> make(gpumem::device where = gpumem::device{0}) {
    gpumem::async_resource_view pool{where};
    return gpumem::callback_resource{
        where,
        [this, pool](gpumem::stream_ref on, std::size_t bytes, std::size_t alignment) mutable {
          current_ = gpumem::device::current().ordinal();
          if (fails_) fails_();
          void* const p = pool.allocate(on, bytes, alignment);
          std::scoped_lock const held{mutex_};
          allocated_.push_back({on.get(), p, bytes, alignment});
          return p;
        },
        [this, pool](gpumem::stream_ref on, void* p, std::size_t bytes, std::size_t alignment) mutable {
          {
            std::scoped_lock const held{mutex_};
            freed_.push_back({on.get(), p, bytes, alignment});
          }
          pool.deallocate(on, p, bytes, alignment);
          if (throws_) throw std::runtime_error{"no"};
        }};
  }
  /// Enqueues work on the block; it has not run when this returns.
  void use(CUstream on, void* p) {
    ran_ = false;
    simulator::work(gpumem::stream_ref{on}, {simulator::write(p, mib)}, 50us, [this] { ran_ = true; });
  }

  std::function<void()> fails_;
  bool throws_ = false;
  bool ran_ = false;
  int current_ = -1;
  std::mutex mutex_;
  std::vector<call> allocated_, freed_;
};

TEST_F(callback_resource, functions_get_the_stream_the_size_and_the_alignment) {
  static_assert(sizeof(gpumem::callback_resource<>) == 8);
  auto subject = make();
  gpumem::stream s{gpumem::device{0}};
  void* const p = subject.allocate(s, mib + 1, 512);
  use(s.get(), p);
  subject.deallocate(s, p, mib + 1, 512);
  EXPECT_EQ(allocated_, (std::vector<call>{{s.get(), p, mib + 1, 512}}));
  EXPECT_EQ(freed_, allocated_);
  s.synchronize();
}

TEST_F(callback_resource, free_does_not_wait_on_the_host) {
  auto subject = make();
  gpumem::stream s{gpumem::device{0}};
  void* const p = subject.allocate(s, mib);
  auto const waits = gpumem::driver_api::driver_calls("cuStreamSynchronize");
  subject.deallocate(s, p, mib);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamSynchronize"), waits);
}

TEST_F(callback_resource, sync_forms_use_a_stream_of_the_resource_and_wait_for_it) {
  auto subject = make();
  auto const waits = gpumem::driver_api::driver_calls("cuStreamSynchronize");
  void* const p = subject.allocate_sync(mib, 256);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamSynchronize"), waits + 1);
  subject.deallocate_sync(p, mib, 256);
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamSynchronize"), waits + 1);
  ASSERT_EQ(allocated_.size(), 1u);
  EXPECT_NE(allocated_[0].stream, nullptr);
  EXPECT_EQ(freed_, allocated_);
}

TEST_F(callback_resource, failed_wait_of_allocate_sync_gives_the_memory_back) {
  auto subject = make();
  simulator::fail_call("cuStreamSynchronize", 1, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_THROW((void)subject.allocate_sync(mib), gpumem::cuda_error);
  EXPECT_EQ(freed_, allocated_);
  EXPECT_EQ(freed_.size(), 1u);
}

TEST_F(callback_resource, zero_bytes_call_no_function) {
  auto subject = make();
  gpumem::stream s{gpumem::device{0}};
  EXPECT_EQ(subject.allocate(s, 0), nullptr);
  EXPECT_EQ(subject.allocate_sync(0), nullptr);
  subject.deallocate(s, nullptr, 0);
  EXPECT_TRUE(allocated_.empty() && freed_.empty());
}

TEST_F(callback_resource, device_is_current_in_the_functions) {
  auto subject = make(gpumem::device{1});
  gpumem::device_guard const scope{gpumem::device{0}};
  subject.deallocate_sync(subject.allocate_sync(mib), mib);
  EXPECT_EQ(current_, 1);
  EXPECT_EQ(subject.device(), gpumem::device{1});
}

TEST_F(callback_resource, default_streams_are_passed_as_they_are) {
  auto subject = make();
  gpumem::device_guard const scope{gpumem::device{0}};
  for (CUstream const handle : {CUstream{}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    gpumem::stream_ref const s{handle};
    subject.deallocate(s, subject.allocate(s, mib), mib);
    EXPECT_EQ(allocated_.back().stream, handle);
    EXPECT_EQ(freed_.back(), allocated_.back());
  }
  gpumem::driver_api::driver().stream_synchronize(CU_STREAM_PER_THREAD);
}

TEST_F(callback_resource, failures_keep_their_kind_and_code) {
  auto subject = make();
  gpumem::stream s{gpumem::device{0}};
  auto const fails_as = [&](std::function<void()> how) {
    fails_ = std::move(how);
    auto const got = subject.try_allocate(s, 77);
    EXPECT_FALSE(got);
    EXPECT_EQ(got.error().requested, 77u);
    return std::pair{got.error().reason, got.error().code};
  };
  using result = std::pair<outcome, int>;
  EXPECT_EQ(fails_as([] { throw std::bad_alloc{}; }), (result{outcome::exhausted, 0}));
  EXPECT_EQ(fails_as([] { gpumem::driver_api::check(CUDA_ERROR_NOT_PERMITTED, "mine"); }),
            (result{outcome::driver_error, CUDA_ERROR_NOT_PERMITTED}));
  EXPECT_EQ(fails_as([] { gpumem::driver_api::check(CUDA_ERROR_OUT_OF_MEMORY, "mine"); }),
            (result{outcome::exhausted, CUDA_ERROR_OUT_OF_MEMORY}));
  EXPECT_EQ(fails_as([] { throw std::invalid_argument{"mine"}; }), (result{outcome::invalid_argument, 0}));
  EXPECT_EQ(fails_as([] { throw 3; }), (result{outcome::driver_error, 0}));
  EXPECT_EQ(subject.statistics().failures, 5u);
  EXPECT_EQ(subject.statistics().live, 0u);
  EXPECT_TRUE(freed_.empty());
}

TEST_F(callback_resource, null_and_misaligned_memory_are_failures) {
  gpumem::stream s{gpumem::device{0}};
  auto* next = reinterpret_cast<void*>(std::uintptr_t{0x1008});
  std::vector<void*> freed;
  gpumem::callback_resource subject{gpumem::device{0},
                                    [&](gpumem::stream_ref, std::size_t, std::size_t) { return next; },
                                    [&](gpumem::stream_ref, void* p, std::size_t, std::size_t) { freed.push_back(p); }};
  EXPECT_EQ(subject.try_allocate(s, mib).error().reason, outcome::invalid_argument);
  EXPECT_EQ(freed, std::vector<void*>{next}) << "not given back";
  subject.deallocate(s, subject.allocate(s, mib, 8), mib, 8);
  next = nullptr;
  EXPECT_THROW((void)subject.allocate(s, mib), gpumem::out_of_memory);
  EXPECT_EQ(freed.size(), 2u);
}

TEST_F(callback_resource, exception_of_a_free_is_dropped_and_counted) {
  auto subject = make();
  gpumem::stream s{gpumem::device{0}};
  void* const p = subject.allocate(s, mib);
  throws_ = true;
  subject.deallocate(s, p, mib);
  EXPECT_EQ(subject.dropped_exceptions(), 1u);
  EXPECT_EQ(subject.statistics().live, 0u);
}

TEST_F(callback_resource, empty_function_is_refused_by_name) {
  auto const message = [](gpumem::callback_allocate a, gpumem::callback_deallocate d) -> std::string {
    try {
      gpumem::callback_resource subject{gpumem::device{0}, std::move(a), std::move(d)};
    } catch (std::invalid_argument const& e) { return e.what(); }
    return "";
  };
  auto const some = [](gpumem::stream_ref, std::size_t, std::size_t) -> void* { return nullptr; };
  EXPECT_NE(message({}, [](gpumem::stream_ref, void*, std::size_t, std::size_t) {}).find("`allocate`"),
            std::string::npos);
  EXPECT_NE(message(some, {}).find("`deallocate`"), std::string::npos);
}

TEST_F(callback_resource, misuse_is_reported_and_reaches_no_function) {
  recorded_misuse const scope;
  auto subject = make();
  gpumem::stream s{gpumem::device{0}};
  void* const p = subject.allocate(s, mib);
  int elsewhere = 0;
  subject.deallocate(s, &elsewhere, sizeof elsewhere);
  subject.deallocate(s, p, mib + 1);
  EXPECT_TRUE(freed_.empty());
  subject.deallocate(s, p, mib);
  subject.deallocate(s, p, mib);
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0].what, gpumem::misuse::kind::foreign_pointer);
  EXPECT_EQ(seen[1].what, gpumem::misuse::kind::wrong_size);
  EXPECT_EQ(seen[2].what, gpumem::misuse::kind::foreign_pointer);
  EXPECT_EQ(std::string{seen[0].resource}, "callback_resource");
  EXPECT_EQ(freed_.size(), 1u);
}

TEST_F(callback_resource, statistics_count_blocks_and_bytes) {
  auto subject = make();
  void* const p = subject.allocate_sync(3 * mib);
  subject.deallocate_sync(subject.allocate_sync(mib), mib);
  auto const now = subject.statistics();
  EXPECT_EQ(now.live, 3 * mib);
  EXPECT_EQ(now.peak_live, 4 * mib);
  EXPECT_EQ(now.allocations, 2u);
  EXPECT_EQ(now.frees, 1u);
  subject.deallocate_sync(p, 3 * mib);
}

TEST_F(callback_resource, free_inside_a_capture_is_deferred) {
  auto subject = make();
  gpumem::stream captured{gpumem::device{0}}, other{gpumem::device{0}};
  void* const p = subject.allocate(captured, mib);
  captured.begin_capture();
  EXPECT_EQ(subject.try_allocate(captured, mib).error().reason, outcome::capture_unsupported);
  subject.deallocate(captured, p, mib);
  EXPECT_TRUE(freed_.empty());
  auto* const graph = captured.end_capture();
  EXPECT_EQ(gpumem::driver_api::driver().graph_destroy(graph), CUDA_SUCCESS);
  subject.deallocate(other, subject.allocate(other, mib), mib);
  ASSERT_EQ(freed_.size(), 2u);
  EXPECT_EQ(freed_[0].pointer, p);
}

TEST_F(callback_resource, deferred_free_is_done_when_the_last_handle_is_gone) {
  gpumem::stream captured{gpumem::device{0}};
  {
    auto subject = make();
    void* const p = subject.allocate(captured, mib);
    captured.begin_capture();
    subject.deallocate(captured, p, mib);
    EXPECT_EQ(gpumem::driver_api::driver().graph_destroy(captured.end_capture()), CUDA_SUCCESS);
    EXPECT_TRUE(freed_.empty());
  }
  EXPECT_EQ(freed_.size(), 1u);
}

TEST_F(callback_resource, free_without_the_streams_handle_waits_for_the_use) {
  auto subject = make();
  void* p = nullptr;
  gpumem::allocation block;
  std::thread{[&] {
    gpumem::device_guard const scope{gpumem::device{0}};
    block = subject.acquire(gpumem::stream_ref{CU_STREAM_PER_THREAD}, mib).wait();
    p = block.data();
    gpumem::driver_api::driver().stream_synchronize(CU_STREAM_PER_THREAD);
  }}.join();
  block.reset(); // the stream was another thread's
  simulator::run_until_idle();
  subject.deallocate_sync(subject.allocate_sync(1), 1);
  ASSERT_EQ(freed_.size(), 2u);
  auto const& first = freed_[0].pointer == p ? freed_[0] : freed_[1];
  EXPECT_EQ(first.pointer, p);
  EXPECT_NE(first.stream, CU_STREAM_PER_THREAD);
}

TEST_F(callback_resource, last_block_keeps_the_functions) {
  auto const alive = std::make_shared<int>(0);
  gpumem::stream s{gpumem::device{0}};
  std::byte memory[512];
  void* p = nullptr;
  {
    gpumem::callback_resource subject{
        gpumem::device{0}, [alive, &memory](gpumem::stream_ref, std::size_t, std::size_t) -> void* { return memory; },
        [alive](gpumem::stream_ref, void*, std::size_t, std::size_t) {}};
    auto copy = subject;
    EXPECT_TRUE(copy == subject);
    auto block = copy.acquire(s, 16, {.alignment = 1}).wait();
    p = block.release();
    EXPECT_EQ(p, memory);
    auto const kept = subject.services();
    subject = gpumem::callback_resource{gpumem::device{0},
                                        [](gpumem::stream_ref, std::size_t, std::size_t) -> void* { return nullptr; },
                                        [](gpumem::stream_ref, void*, std::size_t, std::size_t) {}};
    EXPECT_FALSE(copy == subject);
    copy = subject;
    EXPECT_EQ(alive.use_count(), 3) << "the functions are gone before their block";
    auto const key = s.key();
    kept.table->deallocate_keyed(kept.state, &key, p, 16, 1);
  }
  EXPECT_EQ(alive.use_count(), 1);
}

TEST_F(callback_resource, pool_and_erased_handle_use_it) {
  {
    gpumem::pool_resource pool{make()};
    gpumem::stream s{gpumem::device{0}};
    pool.deallocate(s, pool.allocate(s, mib), mib);
    EXPECT_EQ(allocated_.size(), 1u);
    s.synchronize();
    EXPECT_GT(pool.trim(), 0u);
    EXPECT_EQ(freed_.size(), 1u);
    gpumem::any_pool erased{make()};
    erased.deallocate(s, erased.allocate(s, mib, 256), mib, 256);
    EXPECT_EQ(gpumem::statistics_of(erased)->allocations, 1u);
  }
  EXPECT_EQ(allocated_.size(), 2u);
}

TEST_F(callback_resource, properties_are_those_that_are_named) {
  using host = gpumem::callback_resource<gpumem::mr::host_accessible>;
  static_assert(gpumem::mr::resource_with<host, gpumem::mr::host_accessible>);
  static_assert(!gpumem::mr::has_property<host, gpumem::mr::device_accessible>);
  using deduced = decltype(make());
  static_assert(!gpumem::mr::has_property<deduced, gpumem::mr::host_accessible>);
}

TEST_F(callback_resource, requests_wait_over_a_limit) {
  gpumem::limiting_adaptor limited{make(), {.limit = mib}};
  gpumem::stream s{gpumem::device{0}};
  auto first = limited.acquire(s, mib).wait();
  std::thread later{[&] {
    gpumem::stream mine{gpumem::device{0}};
    auto second = limited.acquire(mine, mib).wait();
    EXPECT_TRUE(second);
  }};
  while (limited.statistics().waiting == 0) std::this_thread::yield();
  first.reset();
  later.join();
  EXPECT_EQ(allocated_.size(), 2u);
  EXPECT_EQ(freed_.size(), 2u);
}

TEST_F(callback_resource, memory_is_given_back_if_the_host_has_none_for_its_record) {
  if (!test::new_can_fail) GTEST_SKIP();
  gpumem::stream s{gpumem::device{0}};
  std::byte memory[512];
  int given = 0, freed = 0;
  gpumem::callback_resource subject{gpumem::device{0},
                                    [&](gpumem::stream_ref, std::size_t, std::size_t) -> void* {
                                      ++given;
                                      return memory;
                                    },
                                    [&](gpumem::stream_ref, void*, std::size_t, std::size_t) { ++freed; }};
  subject.deallocate(s, subject.allocate(s, 1, 1), 1, 1);
  {
    test::failing_new const now;
    EXPECT_EQ(subject.try_allocate(s, 1, 1).error().reason, outcome::exhausted);
  }
  EXPECT_EQ(given, 2);
  EXPECT_EQ(freed, 2);
  EXPECT_EQ(subject.statistics().live, 0u);
}

TEST_F(callback_resource, many_threads_use_it_at_once) {
  auto subject = make();
  std::vector<std::thread> team;
  for (int i = 0; i < 4; ++i) {
    team.emplace_back([subject]() mutable {
      gpumem::stream mine{gpumem::device{0}};
      for (int n = 0; n < 200; ++n) subject.deallocate(mine, subject.allocate(mine, 4096), 4096);
    });
  }
  for (auto& each : team) each.join();
  EXPECT_EQ(subject.statistics().frees, 800u);
  EXPECT_EQ(freed_.size(), 800u);
}

} // namespace
