// Timers under schedules: started, cancelled, and cancelling themselves.
// SPDX-License-Identifier: Apache-2.0
#include "../support/schedule_seeds.hpp"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

import gpumem;
#include "../support/idle_default_executor.hpp"

namespace {

using gpumem::detail::sync::schedule_point;
using gpumem::detail::sync::now;
using std::chrono::microseconds;

// Counts of the events of a run.
struct timer_counts {
  std::size_t expired = 0, cancelled = 0, waited = 0, by_themselves = 0;
  void operator+=(timer_counts const& other) noexcept {
    expired += other.expired;
    cancelled += other.cancelled;
    waited += other.waited;
    by_themselves += other.by_themselves;
  }
};

// A timer that notes every event that must not happen.
class watched_timer final : public gpumem::detail::timer {
public:
  watched_timer(std::string& wrong, timer_counts& counts) noexcept : wrong_{wrong}, counts_{counts} {}

  void start(gpumem::detail::sync::duration after, bool cancels_itself) {
    cancels_itself_ = cancels_itself;
    due_ = now() + after;
    state_ = state::started;
    gpumem::detail::start_timer(*this, due_);
  }
  void cancel() {
    bool const running = state_ == state::running;
    gpumem::detail::cancel_timer(*this);
    if (state_ == state::running) wrong_ += "it runs when cancel has returned; ";
    counts_.waited += running;
    counts_.cancelled += state_ == state::started;
    state_ = state::idle;
  }
  // Waits until the timer has expired; returns false if it does not.
  bool await() {
    for (auto const late = due_ + std::chrono::seconds{1}; state_ != state::idle;
         gpumem::detail::sync::sleep_for(microseconds{5})) {
      if (now() > late) return false;
    }
    return true;
  }

private:
  enum class state { idle, started, running };

  void expire() noexcept override {
    if (state_ != state::started) wrong_ += "it was not started, or cancelled; ";
    if (now() < due_) wrong_ += "it is early; ";
    state_ = state::running;
    ++counts_.expired;
    for (int i = 0; i < 3; ++i) schedule_point();
    if (cancels_itself_) {
      ++counts_.by_themselves;
      gpumem::detail::cancel_timer(*this);
    }
    state_ = state::idle; // its owner may destroy a timer that has cancelled itself
  }

  std::string& wrong_;
  timer_counts& counts_;
  gpumem::detail::sync::time_point due_{};
  state state_ = state::idle;
  bool cancels_itself_ = false;
};

// Several timers of one owner; each is awaited or cancelled at a random time.
void run_owner(std::uint64_t seed, std::string& wrong, timer_counts& counts) {
  std::minstd_rand random{static_cast<std::uint32_t>(seed * 2 + 1)};
  std::array<std::unique_ptr<watched_timer>, 3> timers;
  for (int round = 0; round < 3; ++round) {
    std::array<bool, 3> awaited{};
    for (std::size_t i = 0; i < timers.size(); ++i) {
      timers[i] = std::make_unique<watched_timer>(wrong, counts);
      awaited[i] = random() % 4 == 0;
      timers[i]->start(microseconds{random() % 5}, awaited[i]);
      for (auto times = random() % 12; times > 0; --times) schedule_point();
    }
    for (std::size_t i = 0; i < timers.size(); ++i) {
      if (!awaited[i]) timers[i]->cancel();
      if (awaited[i] && !timers[i]->await()) wrong += "it never expires; ";
      gpumem::detail::sync::sleep_for(gpumem::detail::sync::duration{random() % 500});
    }
  }
}

TEST(timer_schedule, timer_expires_once_unless_it_is_cancelled) {
  test::schedule_seeds const seeds{200, 5};
  timer_counts sum;
  seeds.each([&](std::uint64_t seed) {
    test::wait_for_idle_library_thread();
    std::array<timer_counts, 2> counts;
    std::string wrong;
    gpumem::detail::schedule::run(
        seed, {[&] { run_owner(seed, wrong, counts[0]); }, [&] { run_owner(~seed, wrong, counts[1]); }});
    for (auto const& one : counts) sum += one;
    ASSERT_EQ(wrong, "") << "GPUMEM_SEED=" << seed;
  });
  std::printf("%llu seeds: expired %zu (cancelled themselves %zu), cancelled %zu, waited for %zu\n",
              static_cast<unsigned long long>(seeds.count()), sum.expired, sum.by_themselves, sum.cancelled,
              sum.waited);
  if (seeds.alone()) return;
  EXPECT_GT(sum.expired, seeds.count());
  EXPECT_GT(sum.cancelled, seeds.count());
  EXPECT_GT(sum.waited, seeds.count() / 100);
  EXPECT_GT(sum.by_themselves, seeds.count());
}

} // namespace
