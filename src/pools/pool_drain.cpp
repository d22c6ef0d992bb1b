// Out of memory: what is free but still in use on some stream is waited for on the host, for a bounded time.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>
module gpumem:pool_drain.impl;
import :pool_engine;
import :pool_order;
import :pool_supply;
import :block;
import :chunks;
import :cuda;
import :device;
import :driver;
import :pool_request;
import :ranges;
import :shards;
import :stream;
import :sync;
import :tags;
import :timeline;
import :timeline_registry;

namespace gpumem::detail {
namespace {

using namespace std::chrono_literals;
inline constexpr sync::duration longest_drain = 1s;
inline constexpr sync::duration longest_nap = 5ms;

// What has to be seen complete of one stream.
struct goal {
  timeline* order;
  epoch newest;
  bool all; // that was freed on it
};

goal goal_of(timeline& order) noexcept {
  if (!order.is_mortal()) return {&order, order.now(), true};
  bool const all = order.uncovered_frees() == 0;
  if (!all) order.want();
  return {&order, order.newest_evidence(), all};
}

bool reached(goal const& one) noexcept {
  auto& order = *one.order;
  if (!order.completed(one.newest) && order.newest_evidence() < one.newest) order.cover(std::nullopt);
  order.poll();
  return order.completed(one.newest);
}

bool is_lost(goal const& one) {
  auto const ordinal = one.order->device();
  return ordinal >= 0 && device{ordinal}.lost();
}

} // namespace

bool wait_for_streams(std::vector<timeline*> const& orders, sync::duration longest) noexcept {
  auto const deadline = sync::now() + longest;
  try {
    std::vector<goal> open;
    for (auto* const order : orders) open.push_back(goal_of(*order));
    bool const all = std::ranges::all_of(open, &goal::all);
    for (sync::duration nap = 20us;; nap = std::min(2 * nap, longest_nap)) {
      std::erase_if(open, reached);
      if (open.empty()) return all;
      if (!driver_alive() || std::ranges::any_of(open, is_lost) || sync::now() >= deadline) return false;
      sync::sleep_for(nap);
    }
  } catch (...) { // the host has no memory to wait with
    return false;
  }
}

bool pool_engine::settle(sync::duration longest) {
  timeline_registry::cover_own_defaults();
  std::vector<timeline*> open;
  {
    shard_locks const held{shards_};
    serve_deferred();
    sweep();
    open = pool_order::open_timelines(false, everywhere());
  }
  return wait_for_streams(open, longest) && !lost();
}

// Whether completion of what is open could bring this request about, by itself or by making room for growth.
bool pool_engine::draining_may_help(pool_request const& what) {
  if (!pool_order::may_complete(everywhere())) return false;
  if (supply_.paged() && free_bytes() + supply_.chunks().room() >= what.bytes) return true;
  std::size_t run = 0;
  supply_.chunks().visit([&](chunk const& each) { run = std::max(run, range_map::largest_run(each)); });
  if (run >= what.bytes && (options_.cross_stream != reuse::own || what.key.is_host())) return true;
  return supply_.chunks().largest_idle(0, [](chunk const&) { return true; }) != nullptr;
}

// Polls for up to a second. Memory that completes is looked at, at once; chunks that become idle the caller gives back.
void* pool_engine::drain(pool_request const& what, shard_locks& held) {
  auto const deadline = sync::now() + longest_drain;
  order_.learn_completion(nullptr, everywhere());
  for (sync::duration nap = 20us; draining_may_help(what); nap = std::min(2 * nap, longest_nap)) {
    if (lost() || sync::now() >= deadline) return nullptr;
    held.unlock();
    sync::sleep_for(nap);
    held.lock();
    order_.learn_completion(nullptr, everywhere());
    if (auto* const p = reuse_drained(what)) return p;
  }
  return reuse_drained(what);
}

void* pool_engine::reuse_drained(pool_request const& what) {
  auto* const p = reuse_now(what);
  if (p) ++what.own->counts.reuse_drained;
  return p;
}

} // namespace gpumem::detail
