// Younger work that is preempted for older work: which work, when, and how often.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"
#include "waiting_fixture.hpp"

namespace {

using gpumem::outcome;
using gpumem::pool_resource;
using gpumem::scope;
using gpumem_test::MiB;
namespace simulator = gpumem::simulator;

using pool_preemption = gpumem_test::waiting_fixture;

// An adaptor that makes the deadlock monitor look inside each free: after the free has left the scope, and before it
// has reached the pool.
template <class Upstream>
class looking_state final : public gpumem::extend::adaptor_state<looking_state<Upstream>, Upstream> {
public:
  explicit looking_state(Upstream upstream)
      : gpumem::extend::adaptor_state<looking_state, Upstream>{std::move(upstream)} {}
  void on_free(gpumem::extend::stream_key const&, void*, std::size_t) noexcept {
    gpumem::detail::deadlock_monitor::get().look();
  }
};
template <class Upstream>
class looking_adaptor
    : public gpumem::extend::adaptor_base<looking_adaptor<Upstream>, looking_state<Upstream>, Upstream> {
public:
  explicit looking_adaptor(Upstream upstream)
      : gpumem::extend::adaptor_base<looking_adaptor, looking_state<Upstream>, Upstream>{
            new looking_state<Upstream>{std::move(upstream)}} {}
};

// Work that can be rolled back: it holds one block and waits for another.
template <class Scope>
gpumem::task<> one_and_other(Scope work, gpumem::stream& on, std::size_t one, std::size_t other,
                             gpumem::executor& where, int& rolled_back) {
  auto const body = [&]() -> gpumem::task<> {
    auto const first = co_await work.acquire(on, one, {.resume_on = &where});
    auto const second = co_await work.acquire(on, other, {.resume_on = &where});
  };
  co_await gpumem::with_retry(work, body, [&] { ++rolled_back; }, &where);
}

TEST_F(pool_preemption, preemption_frees_contiguous_memory_for_older_work) {
  pool_resource pool{device, {.initial_size = 100 * MiB, .limit = 100 * MiB, .pages = false}};
  auto const other = pool.acquire(a, 10 * MiB).wait(); // outside a scope: it may be freed at any time
  scope old{pool, "old"}, young{pool, "young"};
  auto held = old.acquire(a, 20 * MiB).wait();
  auto gap = pool.acquire(a, 30 * MiB).wait();
  int rolled_back = 0;
  auto const second = test::start(one_and_other(young, a, 20 * MiB, 60 * MiB, executor, rolled_back));
  ASSERT_EQ(young.held(), 20 * MiB);
  gap.reset();
  run_all();
  request first{*this, old, a, 40 * MiB};
  run_until([&] {
    simulator::run_until_idle();
    return first.ended().has_value();
  });
  EXPECT_EQ(first.ended(), outcome::granted) << "50 MiB were free, in pieces of 30 and 20";
  EXPECT_EQ(rolled_back, 1);
  first.block().reset();
  held.reset();
  run_until([&] {
    simulator::run_until_idle();
    return second.done();
  });
}

TEST_F(pool_preemption, work_is_preempted_between_requests_without_a_scope) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto const other = pool.acquire(a, 10 * MiB).wait(); // outside a scope: it may be freed at any time
  scope work{pool};
  int rolled_back = 0;
  auto const second = test::start(one_and_other(work, a, 40 * MiB, 50 * MiB + 1, executor, rolled_back));
  request last{*this, pool, a, 60 * MiB};
  request first{*this, pool, a, 60 * MiB, {.priority = 1}};
  run_until([&] { return first.ended().has_value(); });
  EXPECT_EQ(first.ended(), outcome::granted);
  EXPECT_EQ(rolled_back, 1);
}

TEST_F(pool_preemption, higher_limit_makes_younger_work_hold_enough) {
  auto const expect_preemption = [&](auto limited) {
    auto const other = limited.acquire(a, 50 * MiB).wait();
    scope old{limited, "old"}, young{limited, "young"};
    int rolled_back = 0;
    auto const second = test::start(one_and_other(young, a, 40 * MiB, 30 * MiB, executor, rolled_back));
    request first{*this, old, a, 60 * MiB};
    let_the_library_thread_poll();
    EXPECT_EQ(rolled_back, 0) << "50 MiB are not enough";
    limited.set_limit(110 * MiB);
    run_until([&] { return first.ended().has_value(); });
    EXPECT_EQ(first.ended(), outcome::granted);
    EXPECT_EQ(rolled_back, 1);
  };
  // With another effort, passes look at surplus pages.
  expect_preemption(pool_resource{device, {.limit = 100 * MiB, .effort = 1}});
  expect_preemption(gpumem::limiting_adaptor{pool_resource{device, {.effort = 1}}, {.limit = 100 * MiB}});
}

TEST_F(pool_preemption, destroyed_victim_is_replaced_by_another) {
  pool_resource pool{device, {.limit = 100 * MiB}};
  auto const other = pool.acquire(a, 10 * MiB).wait();
  scope old{pool, "old"}, young{pool, "young"}, youngest{pool, "youngest"};
  int rolled_back = 0;
  auto second = test::start(one_and_other(young, a, 40 * MiB, 50 * MiB + 1, executor, rolled_back));
  auto third = test::start(one_and_other(youngest, a, 40 * MiB, 50 * MiB + 1, executor, rolled_back));
  request first{*this, old, a, 80 * MiB};
  while (!executor.posted()) std::this_thread::yield(); // the youngest has been asked to roll back, but does not run
  third.destroy();
  run_until([&] { return first.ended().has_value(); });
  EXPECT_EQ(first.ended(), outcome::granted) << "the other one is preempted";
  EXPECT_EQ(rolled_back, 1);
}

TEST_F(pool_preemption, several_are_preempted_at_once_if_one_is_not_enough) {
  looking_adaptor pool{pool_resource{device, {.limit = 100 * MiB}}};
  scope old{pool}, one{pool}, two{pool}, three{pool};
  auto held = old.acquire(a, 20 * MiB).wait();
  int rolled_back = 0;
  auto const run = [&](auto& of) { return one_and_other(of, b, 25 * MiB, 61 * MiB, executor, rolled_back); };
  auto const first_work = test::start(run(one)), second_work = test::start(run(two)), last = test::start(run(three));
  run_all();
  auto const before = executor.posts();
  request first{*this, old, a, 45 * MiB};                     // 5 MiB are free
  wait_until([&] { return executor.posts() >= before + 2; }); // before any work was rolled back
  let_the_library_thread_poll();
  EXPECT_EQ(executor.posts(), before + 2) << "two are enough";
  run_until([&] { return first.ended().has_value(); });
  EXPECT_EQ(rolled_back, 2) << "their memory was on its way";
  first.block().reset();
  held.reset();
  run_until([&] {
    simulator::run_until_idle();
    return first_work.done() && second_work.done() && last.done();
  });
}

} // namespace
