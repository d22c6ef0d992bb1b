// The waits of one thread for the device, at random. Include it after `import gpumem;`, the standard's headers and the
// probes, executor and stop source of the support: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

/// Sleeps on the schedule's clock: the reactors end their pauses and forget how long waits took, so that each seed
/// begins in the same state.
inline void let_reactors_forget(std::uint64_t seed) {
  gpumem::detail::schedule::run(seed, {[] { gpumem::detail::sync::sleep_for(std::chrono::seconds{2}); }});
}

/// How the waits ended, in numbers of waits.
struct wait_counts {
  std::size_t completed = 0, stopped = 0, failed = 0, destroyed = 0, early = 0;
};

/// Enqueues work on streams and waits for it; its own random numbers make every choice. A wait that reports completion
/// must find the work done.
class device_waits {
public:
  device_waits(std::uint64_t seed, wait_counts& seen)
      : random_{static_cast<std::uint32_t>(seed * 2 + 1)}, seen_{seen} {}

  unsigned pick(std::size_t of) { return static_cast<unsigned>(random_() / 7 % of); }

  /// Enqueues the work for the next waits. It may run after the wait for it was abandoned.
  void give_work(gpumem::stream& on) {
    worked_ = std::make_shared<bool>(false);
    gpumem::simulator::work(on, {}, std::chrono::microseconds{1}, [done = worked_] { *done = true; });
  }
  void told_complete() {
    ++seen_.completed;
    if (!*worked_) ++seen_.early;
  }

  /// Awaits a stream or an event.
  template <class On> gpumem::task<> awaited(On& on, gpumem::completion_options options = {}) {
    try {
      co_await gpumem::completion(on, options);
      told_complete();
    } catch (gpumem::cuda_error const&) { ++seen_.failed; }
  }

  /// The library thread stops it, before or after completion.
  gpumem::task<> stopped_or_not(gpumem::stream& on, gpumem::completion_options options = {}) {
    scheduled_stop_source source;
    auto waits = [&]() -> gpumem::task<> {
      try {
        co_await gpumem::completion(on, options, source.get_token());
        told_complete();
      } catch (gpumem::acquire_error const&) { ++seen_.stopped; } catch (gpumem::cuda_error const&) {
        ++seen_.failed;
      }
    };
    auto stops = [&]() -> gpumem::task<> {
      co_await hop{gpumem::default_executor()};
      source.request_stop();
    };
    co_await gpumem::when_all(waits(), stops());
  }

  /// Destroys the wait at a random schedule point after its registration; no thread resumes it.
  void destroyed(gpumem::stream& on, gpumem::completion_options options = {}) {
    options.resume_on = &never_;
    auto const running = start(awaited(on, options));
    for (auto marks = pick(8); marks > 0; --marks) gpumem::detail::sync::schedule_point();
    ++seen_.destroyed;
  }

private:
  std::minstd_rand random_;
  wait_counts& seen_;
  std::shared_ptr<bool> worked_;
  manual_executor never_;
};

} // namespace test
