// failure_callback_adaptor: when the callback is called, with which figures, and how often.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>
#include <gpumem/services.hpp>

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

import gpumem;

#include "../support/parking_resource.hpp"

namespace {

using namespace gpumem::literals;
using gpumem::allocation_failure;

class failure_callback : public simulated {
protected:
  auto recording(bool answer = false) {
    return [this, answer](allocation_failure const& of) {
      calls_.push_back(of);
      return answer;
    };
  }
  gpumem::stream s_{gpumem::device{0}};
  gpumem::pool_resource<gpumem::cuda_resource> pool_{gpumem::cuda_resource{}, {.limit = 4_MiB}};
  std::vector<allocation_failure> calls_;
};

TEST_F(failure_callback, memory_that_the_callback_frees_serves_the_request) {
  void* spilled = pool_.allocate(s_, 3_MiB);
  gpumem::failure_callback_adaptor subject{pool_, {.callback = [&](allocation_failure const& of) {
                                             calls_.push_back(of);
                                             pool_.deallocate(s_, std::exchange(spilled, nullptr), 3_MiB);
                                             return true;
                                           }}};
  void* const p = subject.allocate(s_, 2_MiB);
  EXPECT_NE(p, nullptr);
  ASSERT_EQ(calls_.size(), 1u);
  EXPECT_EQ(calls_[0].requested, 2_MiB);
  EXPECT_EQ(calls_[0].missing, 1_MiB);
  EXPECT_EQ(calls_[0].attempt, 1u);
  EXPECT_EQ(calls_[0].reason, gpumem::outcome::exhausted);
  subject.deallocate(s_, p, 2_MiB);
}

TEST_F(failure_callback, request_that_succeeds_calls_nothing) {
  gpumem::failure_callback_adaptor subject{pool_, {.callback = recording(true)}};
  subject.deallocate(s_, subject.allocate(s_, 1_MiB), 1_MiB);
  subject.deallocate_sync(subject.allocate_sync(1_MiB), 1_MiB);
  EXPECT_TRUE(calls_.empty());
}

TEST_F(failure_callback, retries_are_bounded) {
  void* const held = pool_.allocate(s_, 4_MiB);
  for (unsigned const retries : {0u, 1u, 5u}) {
    calls_.clear();
    gpumem::failure_callback_adaptor subject{pool_, {.callback = recording(true), .max_retries = retries}};
    EXPECT_EQ(subject.try_allocate(s_, 1_MiB).error().reason, gpumem::outcome::exhausted);
    ASSERT_EQ(calls_.size(), retries);
    if (retries == 0) continue;
    EXPECT_EQ(calls_.back().attempt, retries);
    EXPECT_EQ(calls_.back().missing, 1_MiB);
  }
  pool_.deallocate(s_, held, 4_MiB);
}

TEST_F(failure_callback, memory_that_the_last_call_frees_serves_the_request) {
  for (unsigned const retries : {1u, 5u}) {
    void* const held = pool_.allocate(s_, 4_MiB);
    auto const free_at_last = [&](allocation_failure const& of) {
      if (of.attempt == retries) pool_.deallocate(s_, held, 4_MiB);
      return true;
    };
    gpumem::failure_callback_adaptor subject{pool_, {.callback = free_at_last, .max_retries = retries}};
    auto const p = subject.try_allocate(s_, 1_MiB);
    ASSERT_TRUE(p);
    subject.deallocate(s_, *p, 1_MiB);
  }
}

TEST_F(failure_callback, false_and_exceptions_end_the_request) {
  void* const held = pool_.allocate(s_, 4_MiB);
  gpumem::failure_callback_adaptor refusing{pool_, {.callback = recording(false)}};
  EXPECT_THROW((void)refusing.allocate(s_, 1_MiB), gpumem::out_of_memory);
  EXPECT_EQ(calls_.size(), 1u);
  int thrown = 0;
  gpumem::failure_callback_adaptor throwing{pool_, {.callback = [&](allocation_failure const&) -> bool {
                                              ++thrown;
                                              throw std::runtime_error{"no"};
                                            }}};
  EXPECT_THROW((void)throwing.allocate(s_, 1_MiB), gpumem::out_of_memory);
  EXPECT_EQ(thrown, 1);
  pool_.deallocate(s_, held, 4_MiB);
}

TEST_F(failure_callback, only_exhaustion_calls_it) {
  gpumem::failure_callback_adaptor subject{pool_, {.callback = recording(true)}};
  EXPECT_EQ(subject.try_allocate(s_, 5_MiB).error().reason, gpumem::outcome::too_large);
  EXPECT_THROW((void)subject.allocate(s_, 1_MiB, 3), std::invalid_argument);
  EXPECT_TRUE(calls_.empty());
}

TEST_F(failure_callback, missing_bytes_are_those_of_the_limit_or_the_device) {
  gpumem::limiting_adaptor limited{gpumem::pool_resource{gpumem::cuda_resource{}}, {.limit = 10_MiB}};
  void* const held = limited.allocate(s_, 8_MiB);
  gpumem::failure_callback_adaptor subject{limited, {.callback = recording()}};
  EXPECT_FALSE(subject.try_allocate(s_, 5_MiB));
  EXPECT_EQ(calls_.back().missing, 3_MiB);
  limited.deallocate(s_, held, 8_MiB);

  auto const free = gpumem::device{0}.memory().free;
  gpumem::failure_callback_adaptor direct{gpumem::cuda_resource{}, {.callback = recording()}};
  EXPECT_FALSE(direct.try_allocate(s_, free + 7_MiB));
  EXPECT_EQ(calls_.back().missing, 7_MiB);

  gpumem::failure_callback_adaptor erased{gpumem::any_pool{gpumem::cuda_resource{}}, {.callback = recording()}};
  EXPECT_FALSE(erased.try_allocate(s_, free + 7_MiB));
  EXPECT_EQ(calls_.back().missing, 7_MiB);
}

TEST_F(failure_callback, all_bytes_are_missing_where_enough_is_free_but_not_in_one_range) {
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool_.allocate(s_, 1_MiB));
  pool_.deallocate(s_, blocks[0], 1_MiB);
  pool_.deallocate(s_, blocks[2], 1_MiB);
  s_.synchronize();
  gpumem::failure_callback_adaptor subject{pool_, {.callback = recording()}};
  ASSERT_FALSE(subject.try_allocate(s_, 2_MiB));
  EXPECT_EQ(calls_.back().missing, 2_MiB);
  pool_.deallocate(s_, blocks[1], 1_MiB);
  pool_.deallocate(s_, blocks[3], 1_MiB);
}

TEST_F(failure_callback, callback_may_allocate_through_the_adaptors) {
  void* const held = pool_.allocate(s_, 4_MiB);
  std::function<bool(allocation_failure const&)> inner, outer;
  gpumem::failure_callback_adaptor one{pool_, {.callback = [&](auto const& of) { return inner(of); }}};
  gpumem::failure_callback_adaptor other{one, {.callback = [&](auto const& of) { return outer(of); }}};
  int inners = 0, outers = 0;
  inner = [&](allocation_failure const&) {
    ++inners;
    EXPECT_FALSE(other.try_allocate(s_, 1_MiB));
    return false;
  };
  outer = [&](allocation_failure const&) {
    ++outers;
    EXPECT_FALSE(one.try_allocate(s_, 1_MiB));
    EXPECT_FALSE(other.try_allocate(s_, 1_MiB));
    return false;
  };
  EXPECT_FALSE(other.try_allocate(s_, 1_MiB));
  EXPECT_LE(inners, 4);
  EXPECT_LE(outers, 4);
  EXPECT_GT(inners * outers, 0);
  pool_.deallocate(s_, held, 4_MiB);
}

TEST_F(failure_callback, request_that_does_not_wait_calls_it) {
  auto const held = pool_.acquire(s_, 3_MiB).wait();
  gpumem::failure_callback_adaptor subject{pool_, {.callback = recording()}};
  EXPECT_FALSE(gpumem::acquire(subject, s_, 2_MiB).try_now());
  EXPECT_EQ(calls_.size(), 1u);
}

TEST_F(failure_callback, request_that_may_wait_calls_nothing) {
  test::parking_resource upstream{100};
  gpumem::failure_callback_adaptor subject{upstream, {.callback = recording(true)}};
  auto held = subject.acquire(s_, 100).wait();
  std::thread waiting{[&] { EXPECT_TRUE(subject.acquire(s_, 50).wait()); }};
  while (upstream.state().parked() == 0) std::this_thread::yield();
  EXPECT_TRUE(calls_.empty());
  EXPECT_FALSE(subject.try_allocate(s_, 10));
  EXPECT_EQ(calls_.size(), 8u);
  held.reset();
  waiting.join();
}

TEST_F(failure_callback, acquire_calls_it_where_requests_cannot_wait) {
  auto const free = gpumem::device{0}.memory().free;
  gpumem::failure_callback_adaptor subject{gpumem::any_pool{gpumem::cuda_resource{}}, {.callback = recording()}};
  EXPECT_THROW((void)subject.acquire(s_, free + 1).wait(), gpumem::out_of_memory);
  EXPECT_EQ(calls_.size(), 1u);
}

TEST_F(failure_callback, callback_must_be_set) {
  EXPECT_THROW((gpumem::failure_callback_adaptor{pool_, {.callback = nullptr}}), std::invalid_argument);
}

} // namespace
