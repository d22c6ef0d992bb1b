// Random work under schedules over stacks of resources: nested scopes, limits in front of pools, bins, and several
// blocks at once. Each request ends, and none is preempted or stalls without need.
// SPDX-License-Identifier: Apache-2.0
#include "../support/schedule_seeds.hpp"
#include "property/random_source.hpp"

#include <gpumem/pool_options.hpp>
#include <gpumem/simulator.hpp>

#include <array>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

import gpumem;
#include "../support/coroutine_probes.hpp"
#include "../support/idle_default_executor.hpp"

namespace {

namespace simulator = gpumem::simulator;
using gpumem::outcome;
using pool = gpumem::pool_resource<gpumem::cuda_resource>;
using gpumem_test::random_source;
using tally = std::map<std::string, std::uint64_t>;

// One work holds at most three blocks. Room for eight is enough for one work, however its blocks lie.
constexpr std::size_t members = 8, works = 4, unit = 4096, most = 6 * unit, small = 4 * unit, room = 8 * most;

// The seed chooses these for all members.
struct form {
  explicit form(std::uint64_t seed)
      : limits{seed % 2 == 1}, bins{seed / 2 % 2 == 1}, ample{seed / 4 % 8 == 0}, all_roll_back{seed / 4 % 2 == 1} {}
  bool limits, bins;
  bool ample;         // there is room for all members at once, however their blocks lie
  bool all_roll_back; // each work can be rolled back
  // Ample: there is no gap of `most` bytes only if 23 blocks and 24 gaps take more than this.
  std::size_t bytes() const { return ample ? 48 * most : room; }
};

// Runs work items on the thread that waits for them.
class own_executor final : public gpumem::executor {
public:
  void post(gpumem::extend::work_item& item) noexcept override {
    gpumem::detail::sync::lock const held{mutex_};
    queue_.push(item);
    wake_.notify_all();
  }
  bool try_cancel(gpumem::extend::work_item& item) noexcept override {
    gpumem::detail::sync::lock const held{mutex_};
    return queue_.remove(item);
  }
  template <class Done> void run_until(Done done) {
    while (!done()) {
      gpumem::detail::sync::lock held{mutex_};
      while (queue_.empty()) wake_.wait(mutex_);
      auto* const item = queue_.pop();
      held.unlock();
      item->resume();
    }
  }

private:
  gpumem::detail::sync::mutex mutex_;
  gpumem::detail::sync::condition wake_;
  gpumem::extend::work_queue queue_;
};

// The book keeps the events of all members. One thread runs at a time, so it has no lock.
struct book {
  form how;
  tally told{};
  std::string events{}, wrong{};
  std::array<std::uint64_t, members> age{}; // of the work that each member runs now; 0: none
  std::array<bool, members> had_older{};    // older work ran when the work began

  void tell(std::size_t member, std::string const& what) {
    ++told[what];
    events += std::to_string(member) + " " + what + "\n";
  }
  void begin(std::size_t member, std::uint64_t now) {
    age[member] = now;
    had_older[member] = false;
    for (std::size_t i = 0; i < members; ++i) {
      if (age[i] != 0 && age[i] < now) had_older[member] = true;
      if (age[i] > now) had_older[i] = true;
    }
  }
  void roll_back(std::size_t member) {
    tell(member, "rolls back");
    if (how.ample || !had_older[member]) wrong += "rolled back without need; ";
  }
  void end(std::size_t member, outcome why) {
    tell(member, to_string(why));
    if (how.ample || how.all_roll_back || why != outcome::stalled)
      wrong += std::string{"ended without need: "} + to_string(why) + "; ";
  }
};

template <class Resource> class member {
public:
  member(Resource shared, book& seen, std::size_t self, std::uint64_t seed)
      : shared_{std::move(shared)}, book_{seen}, self_{self}, random_{seed * members + self} {}

  void run() {
    for (std::size_t i = 0; i < works; ++i) {
      bool ended = false;
      auto const whole = [&]() -> gpumem::task<> {
        try {
          co_await some_work();
        } catch (gpumem::acquire_error const& e) { book_.end(self_, e.reason()); }
        ended = true;
      };
      auto const running = test::start(whole());
      executor_.run_until([&] { return ended; });
      book_.age[self_] = 0;
      pause();
    }
  }

private:
  gpumem::task<> some_work() {
    gpumem::scope outer{shared_, "outer"};
    book_.begin(self_, outer.as_holder().age());
    bool const nests = random_.one_in(2), rolls_back = book_.how.all_roll_back || random_.one_in(2);
    auto const seed = random_.below(1u << 20);
    auto const body = [&, nests, seed]() -> gpumem::task<> {
      if (nests) {
        book_.tell(self_, "nests");
        gpumem::scope step{outer, "step"};
        co_await blocks(outer, step, seed);
      } else {
        co_await blocks(outer, outer, seed);
      }
    };
    if (rolls_back) {
      co_await gpumem::with_retry(outer, body, [this] { book_.roll_back(self_); }, &executor_);
    } else {
      co_await body();
    }
  }
  // Holds a block of the one scope, then asks the other for more: for single blocks, or for two at once.
  template <class One, class Other> gpumem::task<> blocks(One one, Other other, std::uint64_t seed) {
    random_source random{seed};
    auto const size = [&] { return unit * (1 + random.below(most / unit)); };
    auto const first = co_await one.acquire(on_, size(), {.resume_on = &executor_});
    simulator::work(on_, {simulator::write(first.data(), first.bytes())});
    pause();
    if (random.one_in(2)) {
      book_.tell(self_, "asks for several");
      auto const bytes = size(); // both of one bin: requests for blocks of several bins do not wait
      auto const both = co_await other.acquire_all({{on_, bytes}, {on_, bytes}}, {.resume_on = &executor_});
      pause();
    } else {
      auto const second = co_await other.acquire(on_, size(), {.resume_on = &executor_});
      pause();
      auto const third = co_await other.acquire(on_, size(), {.resume_on = &executor_});
      pause();
    }
    book_.tell(self_, "has all");
  }
  void pause() {
    for (auto times = random_.below(12); times > 0; --times) gpumem::detail::sync::schedule_point();
  }

  Resource shared_;
  book& book_;
  std::size_t const self_;
  random_source random_;
  gpumem::stream on_{gpumem::device{0}};
  own_executor executor_;
};

template <class Resource> void run_members(Resource shared, book& seen, std::uint64_t seed) {
  std::vector<std::unique_ptr<member<Resource>>> all;
  for (std::size_t i = 0; i < members; ++i) all.push_back(std::make_unique<member<Resource>>(shared, seen, i, seed));
  std::vector<std::function<void()>> bodies;
  for (auto& each : all) bodies.emplace_back([&] { each->run(); });
  gpumem::detail::schedule::run(seed, std::move(bodies), 1 + seed % 5);
}

pool limited(std::size_t bytes) {
  return pool{gpumem::device{0}, {.initial_size = bytes, .limit = bytes, .pages = false}};
}

void check(pool& one, book& seen) {
  if (one.statistics().live != 0) seen.wrong += "memory was lost; ";
  if (one.statistics().waiting != 0) seen.wrong += "a request still waits; ";
}

book run_seed(std::uint64_t seed) {
  simulator::run_until_idle();
  test::wait_for_idle_library_thread();
  simulator::seed(seed);
  book seen{.how = form{seed}};
  auto const& how = seen.how;
  pool first = limited(how.bytes());
  std::optional<pool> spare;
  gpumem::any_pool shared{first};
  if (how.bins) {
    spare.emplace(limited(how.bytes()));
    gpumem::binning_resource bins{gpumem::cuda_resource{gpumem::device{0}}};
    bins.add_bin(small, first);
    bins.add_bin(most, *spare);
    shared = gpumem::any_pool{bins};
  }
  if (how.limits)
    shared = gpumem::any_pool{gpumem::limiting_adaptor{shared, {.limit = how.ample ? how.bytes() : room - most}}};
  run_members(shared, seen, seed);
  ++seen.told[how.ample ? "ample room" : "scarce room"];
  ++seen.told[how.limits ? "over a limit" : "over no limit"];
  ++seen.told[how.bins ? "over bins" : "over one pool"];
  check(first, seen);
  if (spare) check(*spare, seen);
  for (auto const& each : simulator::take_findings()) seen.wrong += each.text + "; ";
  return seen;
}

TEST(pool_stacks_schedule, every_request_ends_and_none_without_need) {
  test::schedule_seeds const seeds{160, 5};
  tally sum;
  seeds.each([&](std::uint64_t seed) {
    auto const seen = run_seed(seed);
    for (auto const& [what, times] : seen.told) sum[what] += times;
    ASSERT_EQ(seen.wrong, "") << "GPUMEM_SEED=" << seed << "\n" << seen.events;
  });
  for (auto const& [what, times] : sum)
    std::printf("%10llu %s\n", static_cast<unsigned long long>(times), what.c_str());
  if (seeds.alone() || HasFatalFailure()) return;
  // Whether a request stalls also depends on when the library's thread looks.
  for (auto const* what : {"rolls back", "nests", "asks for several", "has all"}) EXPECT_GT(sum[what], 0u) << what;
}

} // namespace
