// What goes back upstream: when asked for, beyond the threshold, and at the end of the pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <new>
module gpumem:pool_return.impl;
import :pool_engine;
import :pool_order;
import :pool_supply;
import :block;
import :chunks;
import :driver;
import :executor;
import :shards;
import :sync;
import :timeline;

namespace gpumem::detail {
namespace {

using namespace std::chrono_literals;

inline constexpr unsigned most_passes = 1000; // about a second
inline constexpr auto shortest_pause = 20us;
inline constexpr auto longest_pause = 1ms;

// The process is exiting: the library thread must come to an end.
std::atomic<bool> leaving_driver{false};
void note_leaving() noexcept { leaving_driver.store(true, std::memory_order_relaxed); }

} // namespace

bool leaving() noexcept {
  static bool const once = [] {
    at_driver_exit(note_leaving); // after the library thread's own registration, so it runs before that is joined
    return true;
  }();
  static_cast<void>(once);
  return leaving_driver.load(std::memory_order_relaxed);
}

std::size_t pool_engine::trim(std::size_t keep) {
  shard_locks held{shards_};
  serve_deferred();
  sweep();
  order_.learn_completion(nullptr, everywhere());
  return supply_.give_back(keep, held);
}

void pool_engine::post_pass() noexcept {
  if (posted_ || !driver_alive()) return;
  posted_ = true;
  leaving(); // is watched from now on
  library_executor().post(*this);
}

// A pass of the library thread: gives back what is beyond the threshold, or all of a closed pool, as it completes.
void pool_engine::resume() noexcept {
  bool done = false;
  {
    shard_locks held{shards_};
    posted_ = false;
    passing_ = true;
    pass(held);
    passing_ = false;
    done = supply_.closed() && supply_.chunks().empty();
    bool const beyond = supply_.chunks().reserved() > options_.release_threshold;
    bool const more = supply_.closed() ? !done : beyond && idle_passes_ < most_passes;
    if (more && !leaving()) post_pass();
    if (more && leaving() && supply_.closed()) leave_behind();
  }
  if (done) delete this;
}

void pool_engine::pass(shard_locks& held) noexcept {
  try {
    sweep(); // near the threshold frees are kept apart again
    order_.learn_completion(nullptr, everywhere());
    supply_.give_back(supply_.closed() ? 0 : options_.release_threshold, held);
    auto const open = pool_order::open_timelines(false, everywhere());
    auto const tails = pool_order::open_timelines(true, everywhere());
    // Tails of streams that never came back; waited for by another thread, now and then.
    bool const only_tails =
        supply_.closed() && !tails.empty() && open.size() == tails.size() && idle_passes_ >= next_wait_;
    if (only_tails) next_wait_ = idle_passes_ + most_passes;
    ++idle_passes_;
    if (open.empty()) idle_passes_ = most_passes; // what is left is in use, or needed
    auto const pause = std::min<sync::duration>(shortest_pause * idle_passes_, longest_pause);
    held.unlock();
    if (only_tails) synchronise_with(tails, 0ns);
    if (!open.empty()) sync::sleep_for(pause);
    held.lock();
  } catch (std::bad_alloc const&) {
    if (!held) held.lock(); // the next pass looks again
  }
}

// A pool that outlives the driver is leaked on purpose, and stays reachable.
void pool_engine::leave_behind() noexcept {
  static std::atomic<pool_engine*> left{nullptr};
  next_left_ = left.exchange(this);
}

bool pool_engine::abandon() noexcept {
  shard_locks const held{shards_};
  abandoned_ = true;
  set_caching();
  sweep();
  return live_blocks() == 0;
}

void pool_engine::close() noexcept {
  bool done = false;
  {
    shard_locks held{shards_};
    supply_.note_closed();
    if (!driver_alive()) return leave_behind(); // no call may be made any more
    serve_deferred();
    if (posted_ && library_executor().retract(*this)) posted_ = false;
    if (posted_ || passing_) return; // the pass takes over
    try {
      order_.learn_completion(nullptr, everywhere());
    } catch (std::bad_alloc const&) {
      // The library thread looks again.
    }
    supply_.give_back(0, held);
    done = supply_.chunks().empty();
    idle_passes_ = 0;
    if (!done) post_pass();
  }
  if (done) delete this;
}

} // namespace gpumem::detail
