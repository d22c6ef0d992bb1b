// The seeds of a test under schedules; prints the seed at which the test crashed or hung.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace test {

/// GPUMEM_SEED=n runs only seed n; GPUMEM_SEEDS=n runs the seeds 1 to n, since a failure may depend on state that
/// earlier seeds left.
class schedule_seeds {
public:
  /// `count` is used if neither variable is set; under AddressSanitizer half of it, since a seed takes several times as
  /// long. A seed that takes more than `most_seconds` of processor time counts as hanging, and so does one
  /// that takes `most_waiting` seconds.
  explicit schedule_seeds(std::uint64_t count, unsigned most_seconds = 60)
      : schedule_seeds{sanitized ? (count + 1) / 2 : count, most_seconds, listed{}} {}

  /// Returns the seeds 1 to `count` for a test whose seeds number a list: none is left out under AddressSanitizer.
  static schedule_seeds of_list(std::uint64_t count) { return {count, 60, listed{}}; }

  /// True if a single seed was asked for: then a test must not expect events that only many seeds produce.
  bool alone() const noexcept { return only_ != 0; }
  std::uint64_t count() const noexcept { return count_; }

  /// Calls `run` with each seed until a fatal failure. Prints a seed that crashes or hangs.
  template <class Run> void each(Run run) const {
    for (auto const signal : {SIGABRT, SIGALRM, SIGTERM, SIGPROF, SIGBUS, SIGSEGV}) std::signal(signal, tell_seed);
    auto const first = only_ ? only_ : 1;
    for (auto seed = first; seed < first + count_ && !testing::Test::HasFatalFailure(); ++seed) {
      running() = seed;
      limit_time(most_seconds_);
      run(seed);
    }
    limit_time(0);
    for (auto const signal : {SIGABRT, SIGALRM, SIGTERM, SIGPROF, SIGBUS, SIGSEGV}) std::signal(signal, SIG_DFL);
  }

private:
  struct listed {};
  static constexpr unsigned most_waiting = 240;
  schedule_seeds(std::uint64_t count, unsigned most_seconds, listed)
      : only_{number_from("GPUMEM_SEED", 0)}, count_{only_ ? 1 : number_from("GPUMEM_SEEDS", count)},
        most_seconds_{most_seconds} {}

#if __has_feature(address_sanitizer)
  static constexpr bool sanitized = true;
#else
  static constexpr bool sanitized = false;
#endif
  // Sends SIGPROF after that much processor time of all threads; 0: never. Load on the machine does not count. Sends
  // SIGALRM after four minutes, if a thread blocks where the schedule does not see it.
  static void limit_time(unsigned seconds) noexcept {
    alarm(seconds ? most_waiting : 0);
    itimerval const limit{{}, {static_cast<time_t>(seconds), 0}};
    setitimer(ITIMER_PROF, &limit, nullptr);
  }
  static std::uint64_t number_from(char const* name, std::uint64_t otherwise) {
    auto const* const text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 10) : otherwise;
  }
  static std::atomic<std::uint64_t>& running() noexcept {
    static constinit std::atomic<std::uint64_t> seed{0};
    return seed;
  }
  static void tell_seed(int signal) {
    char text[64];
    auto const length = std::snprintf(text, sizeof text, "GPUMEM_SEED=%llu: signal %d\n",
                                      static_cast<unsigned long long>(running().load()), signal);
    [[maybe_unused]] auto const written = write(STDERR_FILENO, text, static_cast<std::size_t>(length));
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }

  std::uint64_t only_;
  std::uint64_t count_;
  unsigned most_seconds_;
};

} // namespace test
