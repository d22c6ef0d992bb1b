// failure_callback_adaptor: computes the missing bytes and calls the callback.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <utility>
module gpumem:failure_callback_adaptor.impl;
import :failure_callback_adaptor;
import :device;
import :error;
import :services;

namespace gpumem::detail {
namespace {

// A list of the callbacks that run on this thread now, from the innermost to the outermost.
struct running_call {
  failure_calls const* of;
  running_call const* outer;
};
thread_local running_call const* innermost = nullptr;

bool runs_on_this_thread(failure_calls const& calls) noexcept {
  for (auto const* each = innermost; each; each = each->outer) {
    if (each->of == &calls) return true;
  }
  return false;
}

// Returns how many bytes the upstream could still give; none if neither its device nor its statistics tell.
std::optional<std::size_t> room_of(services_handle upstream, std::optional<device> device) {
  auto const now = statistics_from(upstream).value_or(statistics{});
  std::optional<std::size_t> room;
  if (device) room = device->memory().free + now.free;
  if (now.limit == 0) return room;
  auto const below_limit = now.limit - std::min(now.limit, std::max(now.live, now.allocated));
  return room ? std::min(*room, below_limit) : below_limit;
}

std::size_t missing_of(services_handle upstream, std::optional<device> device, std::size_t bytes) noexcept {
  try {
    auto const room = room_of(upstream, device);
    return room && *room < bytes ? bytes - *room : bytes;
  } catch (...) { return bytes; } // the driver call failed
}

} // namespace

failure_calls::failure_calls(failure_callback_options options) : options_{std::move(options)} {
  if (!options_.callback) throw std::invalid_argument{"gpumem: failure_callback_options: `callback` is empty"};
}

bool failure_calls::wants_retry(services_handle upstream, std::optional<device> device, failure const& failure,
                                unsigned attempt) noexcept {
  if (attempt > options_.max_retries || runs_on_this_thread(*this)) return false;
  running_call const call{this, innermost};
  innermost = &call;
  bool again = false;
  try {
    again = options_.callback(
        {failure.requested, missing_of(upstream, device, failure.requested), attempt, failure.reason});
  } catch (...) { again = false; }
  innermost = call.outer;
  return again;
}

} // namespace gpumem::detail
