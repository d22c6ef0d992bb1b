// The reactors, which poll events: how often they poll which events, on which thread, and when they sleep.
// SPDX-License-Identifier: Apache-2.0
#include "../support/stepped_device.hpp"

#include <gpumem/services.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include <cuda.h>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/manual_executor.hpp"

namespace {

using namespace std::chrono_literals;
using gpumem::completion;
using gpumem::latency;
using gpumem::task;
namespace simulator = gpumem::simulator;

// The observable state of a device's reactors.
struct reactor {
  gpumem::device device;
  std::uint64_t rounds() const { return gpumem::detail::completion_rounds(device); }
};

std::uint64_t queries() { return gpumem::driver_api::driver_calls("cuEventQuery"); }

// Spins until the reactor has made `rounds` more rounds.
void let_go_round(reactor of, std::uint64_t rounds) {
  auto const from = of.rounds();
  while (of.rounds() < from + rounds) std::this_thread::yield();
}

class reactor_test : public test::stepped_device {
protected:
  void SetUp() override { stream.emplace(gpumem::device{0}); }
  gpumem::stream& s() { return *stream; }
  reactor first() { return {gpumem::device{0}}; }

  task<> wait_for(gpumem::stream_ref on, latency urgency, int number = 0) {
    co_await completion(on, {.latency = urgency, .resume_on = &executor});
    resumed.push_back(number);
  }
  // Runs posted items until `count` waits have resumed.
  void run_until(std::size_t count) {
    while (resumed.size() < count) {
      if (!executor.run_one()) std::this_thread::yield();
    }
  }

  std::optional<gpumem::stream> stream;
  test::manual_executor executor;
  std::vector<int> resumed;
};

TEST_F(reactor_test, waits_of_either_latency_complete) {
  for (auto const urgency : {latency::low, latency::balanced}) {
    resumed.clear();
    simulator::work(s(), {}, 1us);
    auto const running = test::start(wait_for(s(), urgency));
    let_go_round(first(), 3);
    EXPECT_FALSE(executor.run_one());
    simulator::run_until_idle();
    run_until(1);
    EXPECT_TRUE(running.done());
  }
}

TEST_F(reactor_test, polls_only_the_oldest_of_a_thousand_waits_of_a_stream) {
  constexpr int count = 1'000;
  std::vector<test::started> running;
  simulator::work(s(), {}, 1us);
  for (int i = 0; i < count; ++i) running.push_back(test::start(wait_for(s(), latency::balanced, i)));
  let_go_round(first(), 2);
  auto const rounds = first().rounds(), before = queries(); // in this order, since the reactor goes on meanwhile
  let_go_round(first(), 20);
  EXPECT_LE(queries() - before, first().rounds() - rounds + 1);
  auto const waiting_rounds = first().rounds(), waiting = queries();
  simulator::run_until_idle();
  run_until(count);
  EXPECT_LE(queries() - waiting, first().rounds() - waiting_rounds + 3); // the oldest is complete, then the newest
  std::vector<int> in_order(count);
  std::iota(in_order.begin(), in_order.end(), 0);
  EXPECT_EQ(resumed, in_order);
}

TEST_F(reactor_test, completes_only_waits_whose_work_is_complete) {
  std::vector<test::started> running;
  for (int i = 0; i < 5; ++i) {
    simulator::work(s(), {}, 1us);
    running.push_back(test::start(wait_for(s(), latency::balanced, i)));
  }
  for (int done = 1; done <= 5; ++done) {
    while (simulator::report().operations_pending > static_cast<std::uint64_t>(2 * (5 - done))) simulator::step();
    run_until(static_cast<std::size_t>(done));
    if (done < 5) let_go_round(first(), 2);
    EXPECT_FALSE(executor.run_one());
  }
}

TEST_F(reactor_test, next_wait_completes_after_the_oldest_or_newest_was_removed) {
  for (int const gone : {0, 2}) {
    resumed.clear();
    simulator::work(s(), {}, 1us);
    std::vector<test::started> running;
    for (int i = 0; i < 3; ++i) running.push_back(test::start(wait_for(s(), latency::balanced, i)));
    let_go_round(first(), 2);
    running[static_cast<std::size_t>(gone)].destroy();
    let_go_round(first(), 2);
    simulator::run_until_idle();
    run_until(2);
    EXPECT_EQ(std::ranges::count(resumed, gone), 0);
  }
}

TEST_F(reactor_test, polls_one_event_once_for_all_its_waits) {
  gpumem::event event{gpumem::device{0}};
  simulator::work(s(), {}, 1us);
  event.record(s());
  auto body = [&](int number) -> task<> {
    co_await completion(event, {.resume_on = &executor});
    resumed.push_back(number);
  };
  std::vector<test::started> running;
  for (int i = 0; i < 100; ++i) running.push_back(test::start(body(i)));
  let_go_round(first(), 2);
  auto const rounds = first().rounds(), before = queries(); // in this order, since the reactor goes on meanwhile
  let_go_round(first(), 10);
  simulator::run_until_idle();
  run_until(100);
  EXPECT_LE(queries() - before, first().rounds() - rounds + 1);
}

TEST_F(reactor_test, polls_low_latency_waits_more_often_than_balanced_ones) {
  gpumem::stream other{gpumem::device{0}};
  simulator::work(s(), {}, 1us);
  simulator::work(other, {}, 1us);
  auto const patient = test::start(wait_for(s(), latency::balanced, 1));
  auto const hurried = test::start(wait_for(other, latency::low, 2));
  auto const rounds = first().rounds(), before = queries(); // in this order, since the reactor goes on meanwhile
  let_go_round(first(), 2'000);
  auto const gone_round = first().rounds() - rounds;
  EXPECT_LT(queries() - before, 2 * gone_round); // not both in each round
  simulator::run_until_idle();
  run_until(2);
  EXPECT_TRUE(patient.done() && hurried.done());
}

TEST_F(reactor_test, polls_a_stream_fast_while_one_of_its_waits_needs_low_latency) {
  simulator::work(s(), {}, 1us);
  auto const patient = test::start(wait_for(s(), latency::balanced, 1));
  {
    auto const hurried = test::start(wait_for(s(), latency::low, 2));
    let_go_round(first(), 100);
  }
  let_go_round(first(), 3);
  simulator::run_until_idle();
  run_until(1);
  EXPECT_EQ(resumed, std::vector{1});
}

TEST_F(reactor_test, waits_that_resume_elsewhere_complete_while_the_library_thread_is_busy) {
  std::atomic<bool> busy{false}, over{false};
  auto blocks = [&]() -> task<> {
    co_await test::hop{gpumem::default_executor()};
    busy = true;
    while (!over) std::this_thread::yield();
  };
  std::thread blocking{[&] { gpumem::sync_wait(blocks()); }};
  while (!busy) std::this_thread::yield();
  for (auto const urgency : {latency::low, latency::balanced}) {
    resumed.clear();
    simulator::work(s(), {}, 1us);
    auto const running = test::start(wait_for(s(), urgency));
    simulator::run_until_idle();
    run_until(1);
  }
  over = true;
  blocking.join();
}

// Work that is posted to the library thread runs there although waits are polled without a pause.
TEST_F(reactor_test, the_library_thread_polls_the_waits_that_resume_there) {
  for (auto const urgency : {latency::low, latency::balanced}) {
    simulator::work(s(), {}, 1us);
    std::thread::id resumed_on, posted_on;
    auto waits = [&]() -> task<> {
      co_await completion(s(), {.latency = urgency});
      resumed_on = std::this_thread::get_id();
    };
    auto posts = [&]() -> task<> {
      co_await test::hop{gpumem::default_executor()};
      posted_on = std::this_thread::get_id();
    };
    std::thread waiting{[&] { gpumem::sync_wait(waits()); }};
    let_go_round(first(), 3);
    gpumem::sync_wait(posts());
    let_go_round(first(), 3);
    simulator::run_until_idle();
    waiting.join();
    EXPECT_EQ(resumed_on, posted_on);
  }
}

// Waits without a pause do not delay each item that is posted to the library thread by a round.
TEST_F(reactor_test, the_library_thread_runs_all_posted_work_between_two_rounds) {
  constexpr int posted = 100;
  constexpr std::uint64_t busy = 64;
  std::vector<gpumem::stream> streams;
  std::vector<task<>> waits;
  auto wait = [](gpumem::stream_ref on) -> task<> { co_await completion(on, {.latency = latency::low}); };
  for (std::uint64_t i = 0; i < busy; ++i) {
    simulator::work(streams.emplace_back(gpumem::device{0}), {}, 1us);
    waits.push_back(wait(streams.back()));
  }
  std::atomic<bool> holds{false}, goes_on{false}, over{false};
  std::atomic<int> ran{0};
  std::uint64_t before = 0, after = 0;
  auto wait_for_all = [&]() -> task<> {
    co_await gpumem::when_all(std::move(waits));
    over = true;
  };
  auto hold = [&]() -> task<> {
    co_await test::hop{gpumem::default_executor()};
    holds = true;
    while (!goes_on) std::this_thread::yield();
    before = queries();
  };
  auto post = [&]() -> task<> {
    co_await test::hop{gpumem::default_executor()};
    after = queries();
    ++ran;
  };
  std::vector<test::started> running;
  running.push_back(test::start(wait_for_all()));
  running.push_back(test::start(hold()));
  while (!holds) std::this_thread::yield();
  for (int i = 0; i < posted; ++i) running.push_back(test::start(post()));
  goes_on = true;
  while (ran < posted) std::this_thread::yield();
  EXPECT_LE(after - before, busy); // one round
  simulator::run_until_idle();
  while (!over) std::this_thread::yield();
  gpumem::sync_wait(post()); // the library thread has left the coroutines
}

TEST_F(reactor_test, each_device_has_its_own_reactors) {
  gpumem::stream elsewhere{gpumem::device{1}};
  reactor const second{gpumem::device{1}};
  simulator::work(elsewhere, {}, 1us);
  auto const running = test::start(wait_for(elsewhere, latency::balanced));
  auto const rounds = first().rounds();
  let_go_round(second, 5);
  EXPECT_EQ(first().rounds(), rounds);
  simulator::run_until_idle();
  run_until(1);
}

TEST_F(reactor_test, frees_of_a_pool_start_no_polls) {
  gpumem::stream other{gpumem::device{0}};
  auto const rounds = first().rounds();
  {
    gpumem::pool_resource pool{gpumem::cuda_resource{gpumem::device{0}}};
    for (int i = 0; i < 200; ++i) {
      auto& on = i % 2 ? s() : other;
      auto const block = pool.acquire(on, 1 << 16).wait();
      simulator::work(on, {simulator::write(block.data(), block.bytes())}, 1us);
      if (i % 8 == 0) simulator::run_until_idle();
    }
  }
  // The library thread returns the memory; the device runs meanwhile.
  while (simulator::report().bytes_allocated > 0) simulator::run_until_idle();
  EXPECT_EQ(first().rounds(), rounds);
}

TEST_F(reactor_test, reports_an_error_to_the_oldest_wait_alone) {
  simulator::work(s(), {}, 1us);
  auto body = [&](int number) -> task<> {
    try {
      co_await completion(s(), {.resume_on = &executor});
      resumed.push_back(number);
    } catch (gpumem::cuda_error const&) { resumed.push_back(-number); }
  };
  auto const one = test::start(body(1)), two = test::start(body(2));
  simulator::fail_call("cuEventQuery", 1, CUDA_ERROR_INVALID_HANDLE);
  run_until(1);
  simulator::run_until_idle();
  run_until(2);
  EXPECT_EQ(resumed, (std::vector{-1, 2}));
}

TEST_F(reactor_test, serves_many_threads_on_shared_streams) {
  constexpr int threads = 4, each = 300;
  gpumem::stream other{gpumem::device{0}};
  gpumem::thread_pool_executor pool{2};
  std::atomic<int> complete{0}, early{0};
  std::atomic<bool> over{false};
  std::thread device{[&] {
    while (!over) simulator::step();
  }};
  auto body = [&](int seed) -> task<> {
    for (int i = 0; i < each; ++i) {
      auto worked = std::make_shared<std::atomic<bool>>(false);
      auto& on = (seed + i) % 3 ? s() : other;
      simulator::work(on, {}, 1us, [worked] { *worked = true; });
      co_await completion(on, {.latency = i % 2 ? latency::low : latency::balanced, .resume_on = &pool});
      if (!*worked) ++early;
      ++complete;
    }
  };
  std::vector<std::thread> waiting;
  for (int i = 0; i < threads; ++i) waiting.emplace_back([&, i] { gpumem::sync_wait(body(i)); });
  for (auto& thread : waiting) thread.join();
  over = true;
  device.join();
  EXPECT_EQ(complete, threads * each);
  EXPECT_EQ(early, 0);
}

// Near the end, since work behind an event that never completes stays pending.
TEST_F(reactor_test, completes_the_youngest_of_many_waits_first) {
  gpumem::stream other{gpumem::device{0}};
  std::vector<gpumem::event> events;
  while (events.size() < 64) events.emplace_back(gpumem::device{0});
  std::vector<test::started> running;
  auto body = [&](gpumem::event const& awaited, bool youngest) -> task<> {
    co_await completion(awaited, {.latency = latency::low, .resume_on = &executor});
    resumed.push_back(youngest);
  };
  for (auto& each : events) {
    bool const youngest = &each == &events.back();
    if (!youngest) simulator::never_complete(each.get());
    simulator::work(youngest ? other : s(), {}, 1us);
    each.record(youngest ? other : s());
    running.push_back(test::start(body(each, youngest)));
  }
  let_go_round(first(), 10); // a round polls an eighth of the waits in turn
  simulator::run_until_idle();
  run_until(1);
  EXPECT_EQ(resumed, std::vector{1});
}

// In the last test, since the device stays lost. No query reports the loss, since the awaited work never ends.
TEST_F(reactor_test, fails_every_wait_once_another_thread_saw_the_device_lost) {
  gpumem::stream other{gpumem::device{0}};
  simulator::work(s(), {}, 1us);
  simulator::work(other, {}, 1us);
  auto body = [&](gpumem::stream_ref on, latency urgency) -> task<> {
    try {
      co_await completion(on, {.latency = urgency, .resume_on = &executor});
    } catch (gpumem::cuda_error const& e) { resumed.push_back(static_cast<int>(e.status())); }
  };
  std::vector<test::started> running;
  for (int i = 0; i < 20; ++i) {
    running.push_back(test::start(body(i % 2 ? s() : other, i % 4 < 3 ? latency::balanced : latency::low)));
  }
  gpumem::device{0}.mark_lost(CUDA_ERROR_ILLEGAL_ADDRESS);
  run_until(20);
  EXPECT_EQ(std::ranges::count(resumed, static_cast<int>(CUDA_ERROR_ILLEGAL_ADDRESS)), 20);
}

} // namespace
