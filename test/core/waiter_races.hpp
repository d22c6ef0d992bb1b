// Workers that acquire, wait, stop, destroy and free at random; run by free threads and under schedules. Include it
// after the support headers: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

/// How the requests ended, in numbers of requests.
struct stress_counts {
  std::size_t granted = 0, stopped = 0, expired = 0, destroyed = 0, parked = 0;
  std::size_t late = 0; // coroutines that ended by their deadline; `expired` counts blocked threads
  void operator+=(stress_counts const& other) noexcept {
    granted += other.granted;
    stopped += other.stopped;
    expired += other.expired;
    destroyed += other.destroyed;
    parked += other.parked;
    late += other.late;
  }
  void print() const {
    std::printf("granted %zu, stopped %zu, expired %zu and in coroutines %zu, destroyed %zu (parked %zu)\n", granted,
                stopped, expired, late, destroyed, parked);
  }
};

/// Returns the sum of several workers' counts, and prints it.
template <class Counts> stress_counts sum_of(Counts const& each) {
  stress_counts sum;
  for (auto const& one : each) sum += one;
  sum.print();
  return sum;
}

/// One worker's requests; its own random numbers make every choice.
template <class StopSource, class Resource = parking_resource> class stress_worker {
public:
  /// `pause` lets other threads run. `unit`: bytes of the smallest request; the largest is 32 times that. `use` is
  /// called with each granted block.
  stress_worker(
      Resource resource, gpumem::stream_ref stream, std::uint64_t seed, void (*pause)(), std::size_t unit = 16,
      void (*use)(gpumem::allocation const&) = [](gpumem::allocation const&) {})
      : resource_{std::move(resource)}, stream_{stream}, random_{static_cast<std::uint32_t>(seed * 2 + 1)},
        pause_{pause}, unit_{unit}, use_{use} {}

  void run(int requests) {
    for (int i = 0; i < requests; ++i) one_request();
    for (auto& slot : held_) slot.reset();
  }
  stress_counts const& counts() const noexcept { return counts_; }

private:
  std::uint32_t pick(std::uint32_t below) { return static_cast<std::uint32_t>(random_() >> 4) % below; }
  std::size_t size() { return unit_ << pick(6); }

  void one_request() {
    // A request that can park is made while the worker holds nothing; otherwise all workers could wait for each other.
    switch (pick(5)) {
    case 0: return keep(resource_.acquire(stream_, size()).try_now());
    case 1: return with_empty_hands([&] { keep(until_soon()); });
    case 2: return with_empty_hands([&] { keep(resource_.acquire(stream_, size()).wait()); });
    case 3: return with_empty_hands([&] { stopped_request(); });
    default: return with_empty_hands([&] { destroyed_request(); });
    }
  }
  template <class F> void with_empty_hands(F f) {
    for (auto& slot : held_) slot.reset();
    pause();
    f();
  }
  gpumem::expected<gpumem::allocation, gpumem::failure> until_soon() {
    return resource_.acquire(stream_, size())
        .wait_until(gpumem::detail::sync::now() + std::chrono::microseconds{pick(12)});
  }
  void pause() {
    for (auto times = pick(6); times > 0; --times) pause_();
  }
  void keep(gpumem::expected<gpumem::allocation, gpumem::failure> got) {
    if (got) {
      ++counts_.granted;
      use_(*got);
      pause();
      held_[pick(2)] = std::move(*got);
    } else if (got.error().reason == gpumem::outcome::deadline) {
      ++counts_.expired;
    }
  }

  // Returns a deadline for every second request, up to 12 us from now.
  gpumem::detail::sync::time_point some_deadline() {
    if (pick(2)) return gpumem::detail::sync::time_point::max();
    return gpumem::detail::sync::now() + std::chrono::microseconds{pick(12)};
  }
  // A coroutine on the member's own executor; the member stops it at a random time, or its deadline ends it.
  gpumem::task<gpumem::outcome> awaited(gpumem::executor& where, gpumem::extend::stoppable_token auto token) {
    try {
      auto const mine =
          co_await resource_.acquire(stream_, size(), {.resume_on = &where, .deadline = some_deadline()}, token);
      use_(mine);
      pause_();
      co_return gpumem::outcome::granted;
    } catch (gpumem::acquire_error const& e) { co_return e.reason(); }
  }
  void stopped_request() {
    StopSource source;
    gpumem::thread_executor elsewhere;
    auto stopping = [&]() -> gpumem::task<> {
      co_await hop{elsewhere};
      pause_();
      source.request_stop();
    };
    auto [ended, nothing] = gpumem::sync_wait(gpumem::when_all(awaited(elsewhere_, source.get_token()), stopping()));
    counts_.granted += ended == gpumem::outcome::granted;
    counts_.stopped += ended == gpumem::outcome::stopped;
    counts_.late += ended == gpumem::outcome::deadline;
  }
  // A parked coroutine that its owner destroys: before, during or after its grant or deadline.
  void destroyed_request() {
    manual_executor never;
    auto body = [&]() -> gpumem::task<> {
      try {
        (void)co_await resource_.acquire(stream_, size(), {.resume_on = &never, .deadline = some_deadline()});
      } catch (gpumem::acquire_error const&) { ++counts_.late; } // ended before it was parked
    };
    auto const running = start(body());
    if (!running.done()) ++counts_.parked;
    pause();
    ++counts_.destroyed;
  }

  Resource resource_;
  gpumem::stream_ref stream_;
  std::minstd_rand random_;
  void (*pause_)();
  std::size_t unit_;
  void (*use_)(gpumem::allocation const&);
  gpumem::thread_executor elsewhere_;
  gpumem::allocation held_[2];
  stress_counts counts_;
};

/// Runs four workers on free threads, each with a stream of its own, and returns the sum of their counts. `how`: the
/// last arguments of each worker.
template <class StopSource, class Resource, class... How>
stress_counts run_free_workers(Resource const& resource, int requests, How... how) {
  constexpr std::size_t members = 4;
  std::vector<gpumem::stream> streams;
  for (std::size_t i = 0; i < members; ++i) streams.emplace_back(gpumem::device{0});
  std::array<stress_counts, members> counts;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < members; ++i) {
    threads.emplace_back([&, i] {
      auto const pause = [] { std::this_thread::yield(); };
      stress_worker<StopSource, Resource> member{resource, streams[i], i + 1, pause, how...};
      member.run(requests);
      counts[i] = member.counts();
    });
  }
  for (auto& thread : threads) thread.join();
  return sum_of(counts);
}

} // namespace test
