// Decides whether there could be memory for a waiting request.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
module gpumem:waiting_requests.impl;
import :waiting_requests;
import :block;
import :chunk_list;
import :error;
import :frees;
import :pool_backend;
import :pool_mode;
import :pool_parts;
import :reuse_rules;
import :shard_list;
import :waiter;

namespace gpumem::detail {

std::size_t waiting_requests::rounded(std::size_t bytes) const noexcept {
  return size_class::of(std::max(bytes, parts_.smallest_block), size_class::largest_small).bytes;
}

std::size_t waiting_requests::block_size(std::size_t bytes, std::size_t alignment) const noexcept {
  return rounded(parts_.guards.total(bytes, alignment));
}

std::size_t waiting_requests::rounded(waiter const& item) const noexcept {
  if (item.asks_for_turn()) return block_size(item.bytes(), granule);
  return item.bytes_by([this](request_part const& each) { return block_size(each.bytes, each.alignment); });
}

std::uint64_t waiting_requests::change_count() const noexcept {
  auto sum = parts_.requests.changes() + returned_parts_;
  for (auto const& each : parts_.shards.all()) sum += each->counters.promoted;
  return sum;
}

std::uint64_t waiting_requests::change_count(waiter const& item) const noexcept {
  return item.has_parts() ? frees_of_others() : change_count();
}

std::size_t waiting_requests::headroom(std::size_t its_own) const noexcept {
  auto const capacity = std::min(parts_.backend.capacity(), upstream_limit_);
  auto const reserved = parts_.chunks.reserved();
  auto const free = parts_.free_bytes() + (capacity - std::min(capacity, reserved));
  return free - std::min(free, queue.set_aside() - its_own);
}

bool waiting_requests::fits(waiter const& item) const noexcept {
  auto const bytes = rounded(item);
  return bytes <= headroom(waiter_list::bytes_aside(item));
}

// Returns whether memory is live, set aside for another request that tries again, on its way back to the upstream, or
// freed inside a graph capture (a later call completes such a free). A later free may then help the request.
bool waiting_requests::is_held_by_others(waiter const& item) const noexcept {
  bool const set_aside = queue.set_aside() > waiter_list::bytes_aside(item);
  return parts_.live_blocks() > 0 || has_deferred_frees() || set_aside || parts_.backend.is_releasing();
}

std::optional<outcome> waiting_requests::refusal(waiter const& item) const noexcept {
  if (parts_.requests.is_closed()) return outcome::closed;
  if (parts_.backend.lost()) return outcome::device_lost;
  return could_serve(item) ? std::nullopt : std::optional{outcome::too_large};
}

// Returns whether the pool could hold each of the request's blocks, and all of them at once.
bool waiting_requests::could_serve(waiter const& item) const noexcept {
  if (item.asks_for_turn()) return true;
  for (std::size_t i = 0; i < item.parts(); ++i) {
    auto const& one = item.part(i);
    if (!parts_.backend.could_hold(block_size(one.bytes, one.alignment), one.alignment)) return false;
  }
  return rounded(item) <= parts_.backend.capacity();
}

bool waiting_requests::waits_for_nothing(waiter const& item) const noexcept {
  return !is_held_by_others(item) && !(fits(item) && reuse_rules::may_complete(parts_.everywhere()));
}

bool waiting_requests::is_pool_unused() const noexcept {
  return parts_.mode.no_handles() && parts_.live_blocks() == 0 && queue.empty();
}

} // namespace gpumem::detail
