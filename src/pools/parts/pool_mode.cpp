// The settings of a pool that follow from its present state, and the start of its passes.
// SPDX-License-Identifier: Apache-2.0
module;
#include <base/tuning.hpp>
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
module gpumem:pool_mode.impl;
import :stream_epochs;
import :pool_mode;
import :backoff;
import :block;
import :chunk_list;
import :deferred_release;
import :driver;
import :reuse_rules;
import :shard_list;
import :sync;
import :thread_caches;
import :timer;

namespace gpumem::detail {

std::size_t event_threshold_of(std::size_t reserved, bool near_limit) noexcept {
  if (near_limit) return std::max(reserved / tuning::event_fraction_near_limit, granule);
  return std::max(reserved / tuning::event_fraction, stream_epochs::max_silent_bytes);
}

bool is_too_much(std::size_t reserved, std::size_t release_threshold) noexcept {
  auto const slack = release_threshold / 8; // so that a pool near its threshold does not release at each free
  return reserved > slack && reserved - slack > release_threshold;
}

pass_timer::pass_timer(timer& next_pass, admission& requests) noexcept
    : timer_{next_pass}, requests_{requests}, waiting_pause_{tuning::max_pass_pause},
      idle_pause_{tuning::max_pass_pause} {}

// After 1,000 passes without effect, about a second, the library thread no longer looks for memory to give back.
void pass_timer::count_idle(bool open) noexcept { gives_up_ = !open || idle_pause_.count() >= 1000; }

void pass_timer::schedule() noexcept {
  if (queued_ && !(late_ && try_cancel_timer(timer_))) return;
  queued_ = false;
  auto const pause = (requests_.has_waiting() ? waiting_pause_ : idle_pause_).next();
  post(sync::now() + pause, false);
}

void pass_timer::notify() noexcept {
  if (!requests_.has_waiting()) return;
  requests_.count_change();
  schedule();
}

void pass_timer::schedule_at(sync::time_point deadline) noexcept {
  if (queued_ && !late_) return;
  post(std::max(deadline, sync::now() + tuning::max_pass_pause), true);
}

bool pass_timer::cancel() noexcept {
  if (queued_ && try_cancel_timer(timer_)) queued_ = false;
  return !queued_ && !running_;
}

void pass_timer::begin_pass() noexcept {
  queued_ = false;
  running_ = true;
}

// Posts a pass. A late one for a later time is withdrawn; any other that is posted stays.
void pass_timer::post(sync::time_point time, bool late) noexcept {
  if (!driver_alive() || (queued_ && !(late_ && time < posted_for_ && try_cancel_timer(timer_)))) return;
  queued_ = true;
  late_ = late;
  posted_for_ = time;
  process_is_exiting(); // the first call registers a function that will note the exit of the process
  start_timer(timer_, time);
}

// On the fast path a call takes the lock of one shard or none. It is off under memory pressure, beyond the release
// threshold, and after the pool was closed or has lost its last handle. It is also off while frees inside a graph
// capture wait for a later call that completes them. Caching is also off for host-accessible memory: the host must not
// get blocks that the device still uses.
mode_settings derive_mode(mode_facts const& facts) noexcept {
  bool const fast_path = !facts.under_pressure && !facts.closed && !facts.deferred_frees &&
                         !is_too_much(facts.reserved, facts.release_threshold);
  bool const single = facts.shards == 1;
  auto const at_least = [&](std::size_t times) {
    return std::min({facts.reserved / tuning::max_cache_fraction, times * tuning::cached_bytes_per_shard * facts.shards,
                     times * tuning::max_cached_bytes});
  };
  auto const least = at_least(1);
  auto const small = std::clamp(facts.reserved / tuning::small_cache_fraction, least, tuning::max_cached_bytes);
  auto const medium = at_least(single ? 1 : tuning::medium_cache_factor);
  return {.fast_path = fast_path,
          .caching = fast_path && !facts.host_accessible,
          .frees_record = !fast_path || facts.near_limit,
          .largest_numbered = single ? tuning::largest_rounded_bytes : size_class::largest_medium,
          .cache_limits = {small, medium, least},
          .cache_threads = std::max<std::size_t>(facts.shards - 1, 1), // threads with a shard of their own
          .threshold = facts.multi_stream ? event_threshold{event_threshold_of(facts.reserved, facts.near_limit)}
                                          : event_threshold::never()};
}

void pool_mode::update() noexcept {
  auto const settings = derive_mode({.reserved = chunks_.reserved(),
                                     .release_threshold = options_.release_threshold,
                                     .shards = shards_.in_use(),
                                     .near_limit = chunks_.near_limit(),
                                     .under_pressure = under_pressure_,
                                     .closed = requests_.is_closed() || no_handles_,
                                     .deferred_frees = deferred_frees_,
                                     .multi_stream = multi_stream_,
                                     .host_accessible = rules_.host_accessible()});
  fast_path_ = settings.fast_path;
  near_limit_.store(chunks_.near_limit(), std::memory_order_relaxed);
  frees_record_.store(settings.frees_record, std::memory_order_relaxed);
  largest_numbered_.store(settings.largest_numbered, std::memory_order_relaxed);
  caches_.set_limits(settings.caching, settings.cache_limits, settings.cache_threads, settings.threshold);
}

} // namespace gpumem::detail
