// A text and statistics about the requests that wait; the text also lists the scopes that hold memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>
module gpumem:request_queue_report.impl;
import :request_queue;
import :deadlock_monitor;
import :holder;
import :pool_options;
import :pool_parts;
import :shard_list;
import :sync;
import :waiter;
import :waiting_requests;

namespace gpumem::detail {
namespace {

std::string bytes_text(std::size_t count) { return std::to_string(count) + " bytes"; }

// `bytes`: those that the holder has in the pool as its own.
std::string holder_text(holder& of, std::size_t bytes, bool asks) {
  auto text = "'" + of.name() + "' holds " + bytes_text(bytes + of.nested());
  if (of.parent()) text += ", which another scope counts as well";
  if (asks) text += "; it waits for memory";
  if (of.is_marked()) text += "; it waits for something else";
  if (of.rolls_back_with()) text += "; it can be rolled back";
  return text;
}

std::string request_text(std::size_t bytes, sync::duration waited, std::string const& of, int priority) {
  auto const time = std::chrono::duration_cast<std::chrono::milliseconds>(waited).count();
  return "a request for " + bytes_text(bytes) + " waits for " + std::to_string(time) + " ms; of " + of + "; priority " +
         std::to_string(priority);
}

std::string waiter_text(waiter const& item, sync::time_point now) {
  auto const of = item.holder() ? "'" + item.holder()->name() + "'" : std::string{"no scope"};
  auto const text = request_text(item.bytes(), now - waiter_list::waits_since(item), of, item.priority());
  return waiter_list::has_turn(item) ? text + "; it has a turn" : text;
}

} // namespace

waiting_statistics request_queue::read_statistics() noexcept {
  all_shards_lock const held{parts_.shards};
  return waiting_.queue.read_statistics();
}

std::string request_queue::describe(waiting_place const& here, std::size_t live) {
  auto const now = sync::now();
  std::vector<std::pair<std::size_t, std::string>> holding;
  std::vector<holder const*> asking;
  std::string waiting;
  std::size_t requests = 0, outside = live;
  {
    all_shards_lock const held{parts_.shards};
    for (auto const* at = waiting_.queue.first(); at; at = waiter_list::after(*at)) {
      ++requests;
      waiting += "\ngpumem:   " + waiter_text(*at, now);
      for (auto const* unit = at->holder(); unit; unit = unit->parent()) asking.push_back(unit);
    }
  }
  auto& monitor = deadlock_monitor::get();
  for (auto const& each : monitor.parked_before(here))
    waiting += "\ngpumem:   " + request_text(each.bytes, now - each.since, "'" + each.holder + "'", each.priority) +
               "; in front of the pool";
  monitor.visit(here, [&](holder& each, std::size_t bytes, bool waits) {
    outside -= std::min(outside, bytes);
    bool const asks = waits || std::ranges::find(asking, &each) != asking.end();
    holding.emplace_back(bytes + each.nested(), "\ngpumem:   " + holder_text(each, bytes, asks));
  });
  std::ranges::sort(holding, std::greater{}, &std::pair<std::size_t, std::string>::first);
  auto text = "gpumem: " + parts_.options.name + ": " + std::to_string(requests) + " requests wait; " +
              bytes_text(live) + " are live, " + std::to_string(outside) + " of them outside scopes";
  for (auto const& each : holding) text += each.second;
  return text + waiting;
}

} // namespace gpumem::detail
