// Requests that wait in vain: whether the work that holds the memory goes on, and the text that tells of it.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>
module gpumem:pool_stall.impl;
import :pool_engine;
import :holder;
import :shard_list;
import :sync;
import :waiter;

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

// When the requests that wait count as stalled if nothing is granted or freed until then. What has happened since the
// last look counts as having happened now, so that no free has to take the time.
sync::time_point pool_engine::stalls_at() noexcept {
  auto const signs = change_count() - returned_parts_ - vain_ + grants_;
  if (std::exchange(signs_, signs) != signs) quiet_since_ = sync::now();
  return quiet_since_ + std::min<sync::duration>(options_.stall_timeout, std::chrono::years{1}); // no sum overflows
}

bool pool_engine::has_stalled() noexcept {
  return options_.stall_timeout > sync::duration{0} && stalls_at() <= sync::now();
}

void pool_engine::watch_for_stall() noexcept {
  if (has_waiting() && options_.stall_timeout > sync::duration{0}) post_late_pass(stalls_at());
}

std::string pool_engine::describe_waiting(std::size_t live) {
  auto const now = sync::now();
  std::vector<std::pair<std::size_t, std::string>> holding;
  std::vector<holder const*> asking;
  std::string waiting;
  std::size_t requests = 0, outside = live;
  all_shards_lock const held{shards_};
  for (auto const* at = queue_.first(); at; at = waiter_list::after(*at)) {
    ++requests;
    waiting += "\ngpumem:   " + waiter_text(*at, now);
    if (at->holder()) asking.push_back(at->holder());
  }
  holders_.visit([&](holder const& each) {
    auto const bytes = each.held();
    if (!each.is_nested()) outside -= std::min(outside, bytes);
    bool const asks = std::ranges::find(asking, &each) != asking.end();
    if (bytes > 0) holding.emplace_back(bytes, "\ngpumem:   " + holder_text(each, asks));
  });
  std::ranges::sort(holding, std::greater{}, &std::pair<std::size_t, std::string>::first);
  auto text = "gpumem: " + options_.name + ": " + std::to_string(requests) + " requests wait; " + bytes_text(live) +
              " are live, " + std::to_string(outside) + " of them outside scopes";
  for (auto const& each : holding) text += each.second;
  return text + waiting;
}

} // namespace gpumem::detail
