// A small pool that orders reuse by events, and that can be given faults that such pools have had.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "driver.hpp"

#include <functional>
#include <map>
#include <memory>
#include <new>
#include <utility>
#include <vector>

/// The planted fault of a pool.
enum class bug {
  none,
  ignores_order,       // gives freed bytes to any stream
  drops_use_in_merge,  // forgets one stream's uses when neighbours coalesce
  reads_after_record,  // assumes that an event covers frees after its record
  publishes_early,     // publishes the order before the wait is enqueued
  keys_by_handle,      // identifies a stream by its handle's value
  forgets_the_host,    // grants host-accessible memory in stream order only
  waits_on_late_event, // records the event at the wait, so it covers work after the free
};

/// Each free range carries the streams that freed into it, with their epochs. An event of a stream covers the epochs up
/// to the one that was read before it was recorded. A copy is another handle of the same pool.
class ordered_pool {
public:
  ordered_pool(driver_functions const& cu, char* base, std::size_t bytes, bug planted)
      : state_(std::make_shared<state>()) {
    state_->cu = &cu;
    state_->planted = planted;
    state_->free.push_back({base, bytes, {}});
  }

  /// Sets a function that runs in the middle of the next record or wait, as another thread would.
  void meanwhile(std::function<void()> other) { state_->other = std::move(other); }

  void* allocate(cuda::stream_ref stream, std::size_t bytes, std::size_t = 256) {
    for (std::size_t i = 0; i < state_->free.size(); ++i)
      if (state_->free[i].bytes >= bytes && order(stream.get(), state_->free[i].uses)) return cut(i, bytes);
    throw std::bad_alloc();
  }

  void deallocate(cuda::stream_ref stream, void* pointer, std::size_t bytes, std::size_t = 256) noexcept {
    stream_key const key = key_of(stream.get());
    range given{static_cast<char*>(pointer), bytes, {{key, state_->epochs[key], stream.get()}}};
    if (state_->planted == bug::ignores_order) given.uses.clear();
    merge(std::move(given));
  }

  void* allocate_sync(std::size_t bytes, std::size_t = 256) { return allocate(CU_STREAM_LEGACY, bytes); }
  void deallocate_sync(void* pointer, std::size_t bytes, std::size_t = 256) noexcept {
    deallocate(CU_STREAM_LEGACY, pointer, bytes);
  }

  /// Records an event that covers the frees on a stream so far.
  void record(CUstream stream) {
    stream_key const key = key_of(stream);
    CUevent event = nullptr;
    state_->cu->event_create(&event, CU_EVENT_DISABLE_TIMING);
    bool const right = state_->planted != bug::reads_after_record;
    std::uint64_t covered = 0;
    if (right) covered = state_->epochs[key]++;
    state_->cu->event_record(event, stream);
    let_other_run();
    if (!right) covered = state_->epochs[key]++;
    state_->events[key] = {event, covered};
  }

  friend bool operator==(ordered_pool const& a, ordered_pool const& b) { return a.state_ == b.state_; }
  friend void get_property(ordered_pool const&, cuda::mr::device_accessible) noexcept {}

protected:
  void guard_the_host() { state_->host_memory = true; }

private:
  using stream_key = std::uint64_t;
  struct stream_use {
    stream_key key;
    std::uint64_t epoch;
    CUstream stream;
  };
  struct range {
    char* start;
    std::size_t bytes;
    std::vector<stream_use> uses;
  };
  struct recorded_event {
    CUevent event;
    std::uint64_t epoch;
  };
  struct state {
    driver_functions const* cu = nullptr;
    bug planted = bug::none;
    bool host_memory = false;
    std::vector<range> free;
    std::map<stream_key, std::uint64_t> epochs;
    std::map<stream_key, recorded_event> events;
    std::map<std::pair<stream_key, stream_key>, std::uint64_t> joined; // (waiter, donor) → epoch
    std::function<void()> other;
  };

  stream_key key_of(CUstream stream) const {
    if (state_->planted == bug::keys_by_handle) return reinterpret_cast<std::uint64_t>(stream);
    unsigned long long id = 0;
    state_->cu->stream_id(stream, &id);
    return id;
  }

  void let_other_run() {
    if (auto const other = std::exchange(state_->other, {})) other();
  }

  /// Orders `stream` after the uses; returns false if there is no event to wait for.
  bool order(CUstream stream, std::vector<stream_use> const& uses) {
    stream_key const self = key_of(stream);
    for (stream_use const& donor : uses)
      if (donor.key != self && !order_behind(stream, {self, donor.key}, donor)) return false;
    if (!state_->host_memory || state_->planted == bug::forgets_the_host) return true;
    return state_->cu->context_synchronize() == CUDA_SUCCESS;
  }

  bool order_behind(CUstream stream, std::pair<stream_key, stream_key> edge, stream_use const& donor) {
    auto const joined = state_->joined.find(edge);
    if (joined != state_->joined.end() && joined->second >= donor.epoch) return true;
    if (state_->planted == bug::waits_on_late_event) record(donor.stream);
    auto const known = state_->events.find(donor.key);
    if (known == state_->events.end() || known->second.epoch < donor.epoch) return false;
    recorded_event const shown = known->second;
    bool const early = state_->planted == bug::publishes_early;
    if (early) state_->joined[edge] = shown.epoch;
    if (early) let_other_run();
    state_->cu->stream_wait(stream, shown.event, 0);
    if (!early) let_other_run();
    state_->joined[edge] = shown.epoch;
    return true;
  }

  char* cut(std::size_t index, std::size_t bytes) {
    range& from = state_->free[index];
    char* start = from.start;
    from.start += bytes;
    from.bytes -= bytes;
    if (from.bytes == 0) state_->free.erase(state_->free.begin() + static_cast<std::ptrdiff_t>(index));
    return start;
  }

  /// Coalesces with the free neighbour before it, if there is one; the uses of both are kept.
  void merge(range given) {
    for (range& front : state_->free) {
      if (front.start + front.bytes != given.start) continue;
      front.bytes += given.bytes;
      if (state_->planted == bug::drops_use_in_merge) front.uses.clear();
      front.uses.insert(front.uses.end(), given.uses.begin(), given.uses.end());
      return;
    }
    state_->free.insert(state_->free.begin(), std::move(given));
  }

  std::shared_ptr<state> state_;
};

/// The same over memory that the host can access.
class ordered_pinned_pool : public ordered_pool {
public:
  ordered_pinned_pool(driver_functions const& cu, char* base, std::size_t bytes, bug planted)
      : ordered_pool(cu, base, bytes, planted) {
    guard_the_host();
  }
  friend void get_property(ordered_pinned_pool const&, cuda::mr::host_accessible) noexcept {}
};
