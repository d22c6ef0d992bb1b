// A text and statistics about the requests that wait; the text also lists the scopes (units of work) that hold memory.
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
import :holder;
import :pool_options;
import :pool_parts;
import :progress_monitor;
import :shard_list;
import :sync;
import :waiter;
import :waiting_requests;

namespace gpumem::detail {
namespace {

std::string bytes_text(std::size_t count) { return std::to_string(count) + " bytes"; }

std::string holder_text(holder const& of, bool asks) {
  auto text = "'" + of.name() + "' holds " + bytes_text(of.held());
  if (of.is_nested()) text += ", which another scope counts as well";
  if (asks) text += "; it waits for memory";
  if (holder_list::is_marked(of)) text += "; it waits for something else";
  if (of.may_roll_back()) text += "; it can be rolled back";
  return text;
}

std::string waiter_text(waiter const& item, sync::time_point now) {
  auto const waited = std::chrono::duration_cast<std::chrono::milliseconds>(now - waiter_list::waits_since(item));
  auto text = "a request for " + bytes_text(item.bytes()) + " waits for " + std::to_string(waited.count()) + " ms; ";
  text += item.holder() ? "of '" + item.holder()->name() + "'" : std::string{"of no scope"};
  text += "; priority " + std::to_string(item.priority());
  return waiter_list::has_turn(item) ? text + "; it has a turn" : text;
}

} // namespace

waiting_statistics request_queue::read_statistics() noexcept {
  all_shards_lock const held{parts_.shards};
  return waiting_.queue.read_statistics();
}

std::string request_queue::describe(std::size_t live) {
  auto const now = sync::now();
  std::vector<std::pair<std::size_t, std::string>> holding;
  std::vector<holder const*> asking;
  std::string waiting;
  std::size_t requests = 0, outside = live;
  all_shards_lock const held{parts_.shards};
  for (auto const* at = waiting_.queue.first(); at; at = waiter_list::after(*at)) {
    ++requests;
    waiting += "\ngpumem:   " + waiter_text(*at, now);
    if (at->holder()) asking.push_back(at->holder());
  }
  monitor_.holders.visit([&](holder const& each) {
    auto const bytes = each.held();
    if (!each.is_nested()) outside -= std::min(outside, bytes);
    bool const asks = std::ranges::find(asking, &each) != asking.end();
    if (bytes > 0) holding.emplace_back(bytes, "\ngpumem:   " + holder_text(each, asks));
  });
  std::ranges::sort(holding, std::greater{}, &std::pair<std::size_t, std::string>::first);
  auto text = "gpumem: " + parts_.options.name + ": " + std::to_string(requests) + " requests wait; " +
              bytes_text(live) + " are live, " + std::to_string(outside) + " of them outside scopes";
  for (auto const& each : holding) text += each.second;
  return text + waiting;
}

} // namespace gpumem::detail
