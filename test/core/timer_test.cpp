// Timers: their heap compared with a model, and how the library thread runs them.
// SPDX-License-Identifier: Apache-2.0
#include "../support/schedule_seeds.hpp"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/work_item.hpp"
#include "../support/timed_item.hpp"

namespace {

using namespace std::chrono_literals;
using gpumem::detail::cancel_timer;
using gpumem::detail::start_timer;
using gpumem::detail::timer_heap;
using gpumem::detail::sync::now;
using gpumem::detail::sync::time_point;
using test::timed_item;

// The heap beside a sorted map of the same timers: by time, and for equal times by the order of their starts.
class heap_model {
public:
  explicit heap_model(std::uint64_t seed) : random_{static_cast<std::uint32_t>(seed)} {
    for (auto& each : timers_) each.timer = std::make_unique<timed_item>([] {});
  }

  // Removes timers mostly from the front, as the thread that runs them does.
  bool run(int steps) {
    bool same = true;
    while (steps-- > 0 && same) {
      auto& one = timers_[random_() % timers_.size()];
      if (random_() % 3 > 0) {
        insert(one);
      } else {
        auto* const first = heap_.first();
        same = remove(random_() % 2 || !first ? one : *owner_of(first));
      }
      same = same && agrees();
    }
    while (same && !sorted_.empty()) same = remove(*sorted_.begin()->second) && agrees();
    return same;
  }

private:
  struct entry {
    std::unique_ptr<timed_item> timer;
    std::pair<time_point, std::uint64_t> key{};
    bool in = false;
  };

  entry* owner_of(gpumem::detail::timer const* timer) {
    for (auto& each : timers_) {
      if (each.timer.get() == timer) return &each;
    }
    return nullptr;
  }
  void insert(entry& one) {
    if (std::exchange(one.in, true)) return;
    one.key = {time_point{std::chrono::nanoseconds{random_() % 8}}, started_++}; // many have the same time
    sorted_.emplace(one.key, &one);
    heap_.insert(*one.timer, one.key.first);
  }
  bool remove(entry& one) {
    if (one.in) sorted_.erase(one.key);
    return heap_.remove(*one.timer) == std::exchange(one.in, false);
  }
  bool agrees() const {
    auto const* const first = heap_.first();
    if (sorted_.empty()) return first == nullptr;
    return first == sorted_.begin()->second->timer.get() &&
           timer_heap::moment_of(*first) == sorted_.begin()->first.first;
  }

  std::minstd_rand random_;
  std::vector<entry> timers_{40};
  std::map<std::pair<time_point, std::uint64_t>, entry*> sorted_;
  std::uint64_t started_ = 0;
  timer_heap heap_;
};

TEST(timer_heap, earliest_timer_is_first_after_any_inserts_and_removals) {
  test::schedule_seeds const seeds{300};
  seeds.each([&](std::uint64_t seed) { ASSERT_TRUE(heap_model{seed}.run(2'000)) << "GPUMEM_SEED=" << seed; });
}

// Keeps the library thread busy until go_on().
class busy_library_thread {
public:
  busy_library_thread() {
    gpumem::default_executor().post(busy_);
    while (!begun_) std::this_thread::yield();
  }
  void go_on() { go_ = true; }

private:
  std::atomic<bool> begun_{false}, go_{false};
  test::item busy_{[this] {
    begun_ = true;
    while (!go_) std::this_thread::yield();
  }};
};

// Returns after the library thread has handled everything that was due or posted before.
void run_library_thread() {
  auto round = []() -> gpumem::task<> { co_await test::hop{gpumem::default_executor()}; };
  for (int i = 0; i < 2; ++i) gpumem::sync_wait(round());
}

void wait_for(std::atomic<bool> const& done) {
  while (!done) std::this_thread::yield();
}

TEST(timer, expires_at_its_time_on_the_library_thread) {
  std::atomic<bool> expired{false};
  auto id_of_library_thread = []() -> gpumem::task<std::thread::id> {
    co_await test::hop{gpumem::default_executor()};
    co_return std::this_thread::get_id();
  };
  auto const library = gpumem::sync_wait(id_of_library_thread());
  auto const moment = now() + 2ms;
  time_point at;
  std::thread::id ran_on;
  timed_item one{[&] {
    at = now();
    ran_on = std::this_thread::get_id();
    expired = true;
  }};
  start_timer(one, moment);
  wait_for(expired);
  cancel_timer(one);
  EXPECT_GE(at, moment);
  EXPECT_EQ(ran_on, library);
}

TEST(timer, timers_expire_by_time_and_then_in_the_order_of_their_start) {
  std::vector<int> order;
  std::vector<std::unique_ptr<timed_item>> timers;
  auto const base = now();
  busy_library_thread busy;
  for (int const i : {30, 10, 20, 11, 31, 12}) {
    timers.push_back(std::make_unique<timed_item>([&order, i] { order.push_back(i); }));
    start_timer(*timers.back(), base + std::chrono::nanoseconds{i / 10});
  }
  std::atomic<bool> last{false};
  timed_item end{[&] { last = true; }};
  start_timer(end, base + 1us);
  busy.go_on();
  wait_for(last);
  cancel_timer(end);
  EXPECT_EQ(order, (std::vector{10, 11, 12, 20, 30, 31}));
}

TEST(timer, earlier_timer_wakes_the_library_thread) {
  std::atomic<bool> expired{false};
  timed_item late{[] { ADD_FAILURE() << "an hour early"; }}, soon{[&] { expired = true; }};
  start_timer(late, now() + 1h);
  run_library_thread();
  start_timer(soon, now() + 1ms);
  wait_for(expired);
  cancel_timer(late);
  cancel_timer(soon);
}

TEST(timer, cancelled_timer_does_not_expire) {
  timed_item late{[] { ADD_FAILURE() << "it was cancelled"; }}, due{late.body}, never{late.body};
  busy_library_thread busy;
  start_timer(late, now() + 1h);
  start_timer(due, now());
  cancel_timer(due);
  cancel_timer(late);
  cancel_timer(late);
  cancel_timer(never); // was not started
  busy.go_on();
  run_library_thread();
}

TEST(timer, cancel_waits_for_a_callback_on_another_thread) {
  std::atomic<bool> begun{false}, go{false}, over{false}, cancelled{false};
  timed_item one{[&] {
    begun = true;
    wait_for(go);
    over = true;
  }};
  start_timer(one, now());
  wait_for(begun);
  std::thread cancels{[&] {
    cancel_timer(one);
    EXPECT_TRUE(over);
    cancelled = true;
  }};
  for (int i = 0; i < 1'000; ++i) std::this_thread::yield();
  EXPECT_FALSE(cancelled);
  go = true;
  cancels.join();
}

TEST(timer, cancel_does_not_wait_for_the_callback_of_another_timer) {
  std::atomic<bool> begun{false}, go{false};
  timed_item one{[&] {
    begun = true;
    wait_for(go);
  }};
  timed_item other{[] { ADD_FAILURE() << "it was cancelled"; }};
  start_timer(one, now());
  start_timer(other, now());
  wait_for(begun);
  cancel_timer(other);
  go = true;
  cancel_timer(one);
}

TEST(timer, callback_can_cancel_and_destroy_its_timer) {
  std::atomic<bool> expired{false};
  auto* one = new timed_item{[] {}};
  one->body = [&expired, one] {
    cancel_timer(*one);
    auto& done = expired; // the captures are destroyed too
    delete one;
    done = true;
  };
  start_timer(*one, now());
  wait_for(expired);
  run_library_thread();
}

TEST(timer, callback_can_cancel_and_restart_its_timer) {
  std::atomic<bool> begun{false}, go{false};
  timed_item one{[] {}};
  one.body = [&] {
    cancel_timer(one);
    start_timer(one, now() + 1h);
    begun = true;
    wait_for(go);
  };
  start_timer(one, now());
  wait_for(begun);
  cancel_timer(one); // does not wait for the end of the first call
  go = true;
  run_library_thread();
}

TEST(timer, callback_can_restart_its_timer) {
  std::atomic<int> times{0};
  timed_item one{[] {}};
  one.body = [&] {
    if (++times < 5) start_timer(one, now() + 10us);
  };
  start_timer(one, now());
  while (times < 5) std::this_thread::yield();
  cancel_timer(one);
  EXPECT_EQ(times, 5);
}

TEST(timer, timers_and_work_items_do_not_starve_each_other) {
  // Each re-posts itself until both have run 100 times.
  std::atomic<int> resumed{0}, expired{0};
  auto const over = [&] { return resumed >= 100 && expired >= 100; };
  auto& where = gpumem::default_executor();
  test::item posted{[] {}};
  timed_item timed{[] {}};
  posted.body = [&] {
    ++resumed;
    if (!over()) where.post(posted);
  };
  timed.body = [&] {
    ++expired;
    if (!over()) start_timer(timed, now());
  };
  where.post(posted);
  start_timer(timed, now());
  while (!over()) std::this_thread::yield();
  run_library_thread();
  cancel_timer(timed);
}

TEST(timer, timers_of_many_threads_expire_or_are_cancelled) {
  constexpr std::size_t threads = 4, each = 2'000;
  std::atomic<std::size_t> expired{0};
  std::vector<std::thread> starting;
  starting.reserve(threads);
  for (std::size_t t = 0; t < threads; ++t) {
    starting.emplace_back([&, t] {
      std::minstd_rand random{static_cast<std::uint32_t>(t + 1)};
      std::atomic<std::size_t> mine{0};
      std::vector<std::unique_ptr<timed_item>> timers;
      for (std::size_t i = 0; i < each; ++i) {
        timers.push_back(std::make_unique<timed_item>([&] { ++mine; }));
        start_timer(*timers.back(), now() + std::chrono::nanoseconds{random() % 1'000'000});
        if (i % 3 == 0) cancel_timer(*timers[random() % timers.size()]);
      }
      auto const last = now() + 1ms;
      while (now() < last || mine == 0) std::this_thread::yield();
      for (auto& one : timers) cancel_timer(*one);
      expired += mine;
    });
  }
  for (auto& thread : starting) thread.join();
  EXPECT_GT(expired, 0u);
  EXPECT_LE(expired, threads * each);
}

} // namespace
