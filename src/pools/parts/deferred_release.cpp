// The list of closed pools whose memory cannot go back to the upstream yet, and the retries of their release.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <base/tuning.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>
module gpumem:deferred_release.impl;
import :deferred_release;
import :backoff;
import :chunk_list;
import :driver;
import :intrusive_list;
import :stream_timeline;
import :sync;
import :timer;

namespace gpumem::detail {
namespace {

std::atomic<deferred_release*> deferred{nullptr};

// Set when the process exits: the library thread must then end.
std::atomic<bool> exiting{false};
void set_exiting() noexcept { exiting.store(true, std::memory_order_relaxed); }

} // namespace

// The closed pools that still have memory, and the sum of what they keep because no event covers its uses. Never
// destroyed, since pools can close until the process ends.
class closed_pools {
public:
  static closed_pools& instance() noexcept {
    alignas(closed_pools) static std::byte storage[sizeof(closed_pools)]; // needs no memory of the host
    static auto* const all = new (storage) closed_pools;
    return *all;
  }
  bool any() const noexcept { return any_.load(std::memory_order_relaxed); }

  void add(deferred_release& release, int device) {
    sync::lock const lock{mutex_};
    if (std::exchange(release.listed_, true)) return;
    release.device_ = device;
    list_.push_front(release);
    any_.store(true, std::memory_order_relaxed);
  }
  void remove(deferred_release& release) {
    sync::lock const lock{mutex_};
    if (!std::exchange(release.listed_, false)) return;
    list_.remove(release);
    any_.store(!list_.empty(), std::memory_order_relaxed);
    count(release, 0);
    while (release.visitors_ > 0) left_.wait(mutex_);
  }
  void set_uncovered(deferred_release& release, std::size_t bytes) {
    sync::lock const lock{mutex_};
    if (release.listed_) count(release, bytes);
  }

  std::uint64_t begin_round() {
    sync::lock const lock{mutex_};
    return ++rounds_;
  }
  // Returns a pool of the device that no visit of this round or of a later one has seen; null if there is none. It
  // lives at least until leave().
  deferred_release* enter(int device, std::uint64_t round) {
    sync::lock const lock{mutex_};
    for (auto* each = list_.first(); each; each = each->links_.next) {
      if (each->visited_ >= round || each->device_ != device) continue;
      each->visited_ = round;
      ++each->visitors_;
      return each;
    }
    return nullptr;
  }
  void leave(deferred_release& release) {
    sync::lock const lock{mutex_};
    if (--release.visitors_ == 0) left_.notify_all();
  }

private:
  // Limits for the pools that keep such memory, and for its bytes: half of what may stay at most, since the pool that
  // reaches the limit can keep as much again.
  static constexpr std::size_t max_pools = 64, max_bytes = std::size_t{32} << 20, reserved_fraction = 128;

  void count(deferred_release& release, std::size_t bytes) noexcept GPUMEM_REQUIRES(mutex_) {
    pools_ += static_cast<std::size_t>(bytes > 0) - static_cast<std::size_t>(release.uncovered_ > 0);
    bytes_ += bytes - release.uncovered_;
    release.uncovered_ = bytes;
    auto const most = std::max(max_bytes, chunk_list::reserved_by_all_pools() / reserved_fraction);
    note_uncovered_memory(uncovered_memory::closed_pools, pools_ >= max_pools || bytes_ >= most);
  }

  sync::mutex mutex_;
  sync::condition left_;
  intrusive_list<deferred_release> list_ GPUMEM_GUARDED_BY(mutex_);
  std::atomic<bool> any_{false};
  std::size_t pools_ GPUMEM_GUARDED_BY(mutex_) = 0;
  std::size_t bytes_ GPUMEM_GUARDED_BY(mutex_) = 0;
  std::uint64_t rounds_ GPUMEM_GUARDED_BY(mutex_) = 0;
};

bool process_is_exiting() noexcept {
  static bool const once = [] {
    at_driver_exit(set_exiting); // registered last, so it runs before the library thread is joined
    return true;
  }();
  static_cast<void>(once);
  return exiting.load(std::memory_order_relaxed);
}

bool deferred_release::any_closed() noexcept { return closed_pools::instance().any(); }

void deferred_release::list_closed(int device) noexcept { closed_pools::instance().add(*this, device); }

void deferred_release::unlist_closed() noexcept { closed_pools::instance().remove(*this); }

void deferred_release::defer_release() noexcept {
  next_deferred_ = deferred.load(std::memory_order_relaxed);
  while (!deferred.compare_exchange_weak(next_deferred_, this, std::memory_order_acq_rel)) {}
}

void deferred_release::request_events(std::size_t keep) noexcept {
  on_requested_recorded.store(retry_releases, std::memory_order_release);
  try {
    auto const uncovered = streams_without_event();
    for (auto* const timeline : uncovered) timeline->cover_request().raise();
    closed_pools::instance().set_uncovered(*this, uncovered.empty() ? 0 : keep);
  } catch (std::bad_alloc const&) {
    // The next pool that is made or ends retries the releases.
  }
}

void deferred_release::retry_releases() noexcept {
  if (!deferred.load(std::memory_order_relaxed) || !driver_alive() || process_is_exiting()) return;
  for (auto* at = deferred.exchange(nullptr, std::memory_order_acq_rel); at;) {
    auto& one = *at;
    at = at->next_deferred_;
    start_timer(one, sync::now());
  }
}

bool deferred_release::give_back_complete(int device) noexcept {
  auto& closed_list = closed_pools::instance();
  auto const deadline = sync::now() + tuning::max_host_wait;
  for (backoff pause{tuning::max_poll_pause}; closed_list.any() && driver_alive();) {
    bool has_pools = false, later = false;
    auto const round = closed_list.begin_round();
    while (auto* const one = closed_list.enter(device, round)) {
      auto const found = one->give_back();
      closed_list.leave(*one);
      has_pools = has_pools || found == given_back::memory;
      later = later || found == given_back::by_other_thread;
    }
    if (has_pools) retry_releases(); // ends the pools that have no memory any more
    if (has_pools || !later || sync::now() >= deadline) return has_pools || later;
    sync::sleep_for(pause.next());
  }
  return false;
}

} // namespace gpumem::detail
