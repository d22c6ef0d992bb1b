// Requests that wait: who has a turn, what is set aside for it, and who looks at what completes meanwhile.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <new>
#include <optional>
module gpumem:pool_wait.impl;
import :pool_engine;
import :pool_order;
import :pool_supply;
import :block;
import :chunks;
import :cuda;
import :error;
import :pool_request;
import :shards;
import :stream;
import :sync;
import :virtual_pages;
import :waiter;

namespace gpumem::detail {
namespace {

using namespace std::chrono_literals;

inline constexpr auto shortest_watch = 20us;
inline constexpr auto longest_watch = 1ms;

std::size_t rounded(std::size_t bytes) noexcept { return (bytes + granule - 1) / granule * granule; }

} // namespace

// A request that does not queue overtakes all that wait. It gets nothing of what is set aside for others.
std::optional<outcome> pool_engine::refusal_at_door(pool_request const& what) noexcept {
  if (is_shut()) return outcome::closed;
  if (what.key.queues() == queueing::admitted) return std::nullopt;
  if (what.key.queues() == queueing::behind) return outcome::exhausted;
  shard_locks const held{shards_};
  if (!queue_.may_be_overtaken() || !fits(what.requested)) return outcome::exhausted;
  queue_.count_overtaking();
  return std::nullopt;
}

// What may let a request that was refused go on: grows with each free, and with what is found complete.
std::uint64_t pool_engine::news() const noexcept {
  auto sum = changes_;
  for (auto const& each : shards_.all()) sum += each->paths.completed;
  return sum;
}

// Whether there could be so many bytes beside what is set aside for others than the caller.
bool pool_engine::fits(std::size_t bytes, std::size_t its_own) const noexcept {
  auto const unit = supply_.paged() ? smallest_page : granule;
  auto const most = std::min(supply_.chunks().most() / unit * unit, ceiling_);
  auto const reserved = supply_.chunks().reserved();
  auto const free = free_bytes() + (most - std::min(most, reserved));
  return rounded(bytes) <= free - std::min(free, queue_.set_aside() - its_own);
}

bool pool_engine::fits(waiter const& item) const noexcept {
  return fits(item.bytes(), waiter_list::has_turn(item) ? rounded(item.bytes()) : 0);
}

// Whether memory is in somebody's hands, or is about to be.
bool pool_engine::is_held() const noexcept { return live_blocks() > 0 || deferred_ || queue_.set_aside() > 0; }

// Whether the request cannot be met any more.
bool pool_engine::ends(waiter const& item) const noexcept {
  auto const limit = supply_.chunks().limit();
  return is_shut() || lost() || (limit && item.bytes() > limit);
}

// Whether nothing is left that the request could wait for.
bool pool_engine::waits_for_nothing(waiter const& item) const noexcept {
  return !is_held() && !(fits(item) && pool_order::may_complete(everywhere()));
}

// As long as there could be memory for the next. A request that cannot be met any more is called to be told so.
void pool_engine::call_next(called_waiters& calls) noexcept {
  auto const since = news();
  auto const may = [&](waiter const& item) {
    return ends(item) || (item.note() != since && fits(item)) || waits_for_nothing(item);
  };
  while (auto* const next = queue_.next_for_turn(may)) {
    if (!ends(*next)) queue_.count_overtaking(next);
    give_turn(*next, calls);
  }
}

// After the limit has changed.
void pool_engine::call_ended(called_waiters& calls) noexcept {
  for (auto* at = queue_.first(); at; at = waiter_list::after(*at)) {
    if (!waiter_list::has_turn(*at) && ends(*at)) give_turn(*at, calls);
  }
}

void pool_engine::give_turn(waiter& item, called_waiters& calls) noexcept {
  queue_.give_turn(item, rounded(item.bytes()));
  calls.add(item);
}

// For calls that cannot call waiters themselves, since they go on for long.
void pool_engine::tell_waiting() noexcept {
  if (!has_waiting()) return;
  ++changes_;
  post_pass();
}

// To park (O11): first all frees are told to look at the queue, then what threads have kept is taken out, and then the
// request tries once more. What is freed in between counts as news.
pool_engine::turn pool_engine::begin_turn(waiter& item) noexcept {
  called_waiters calls;
  shard_locks const held{shards_};
  if (waiter_list::holds(item)) return new_turn();
  if (is_shut()) {
    item.settle(unexpected<failure>{failure{outcome::closed, 0, item.bytes()}});
    return {waiting::answered};
  }
  bool const first = queue_.empty();
  if (!queue_.park(item)) return {waiting::answered};
  watches_ = 0;
  if (!first) {
    call_next(calls);
    if (watches()) post_pass();
    return {waiting::parked};
  }
  door_.store(door::queue, std::memory_order_relaxed);
  set_pressure(true);
  sweep();
  queue_.give_turn(item, rounded(item.bytes()));
  return new_turn();
}

pool_engine::turn pool_engine::end_turn(waiter& item, turn const& mine, expected<void*, failure> result) noexcept {
  bool last = false;
  {
    called_waiters calls;
    shard_locks const held{shards_};
    if (!result && result.error().what == outcome::exhausted) {
      if (item.stop_requested()) {
        result = unexpected<failure>{failure{outcome::stopped, 0, item.bytes()}};
      } else if (auto const again = wait_again(item, mine, calls); again.what != waiting::answered) {
        return again;
      }
    }
    last = forget(item, calls);
  }
  item.settle(result);
  return {last ? waiting::last : waiting::answered};
}

// After a refusal. It tries again at once if something is new since its turn began; it waits if others have memory, or
// if what it lacks is that work completes. What was set aside for it may be enough for a later request.
pool_engine::turn pool_engine::wait_again(waiter& item, turn const& mine, called_waiters& calls) noexcept {
  bool const open = is_open();
  bool const any = news() != mine.since || (mine.open && !open);
  if (any && (is_shut() || fits(item))) return new_turn();
  queue_.end_turn(item);
  // Not the limit refused it: upstream has less than that left.
  bool const full = supply_.chunks().room() >= item.bytes() + item.alignment();
  if (full) ceiling_ = supply_.chunks().reserved() + rounded(item.bytes()) - granule;
  if (waits_for_nothing(item)) {
    ++shards_.own().counts.failures;
    return {waiting::answered};
  }
  item.set_note(mine.since);
  call_next(calls);
  if (watches()) post_pass();
  return {waiting::parked};
}

bool pool_engine::withdraw(waiter& item, bool& last) noexcept {
  called_waiters calls;
  shard_locks const held{shards_};
  if (!waiter_list::holds(item) || (waiter_list::has_turn(item) && !item.leaving())) return false;
  last = forget(item, calls);
  return true;
}

// It may have been what the others waited behind. Whether it was the last user of the pool.
bool pool_engine::forget(waiter& item, called_waiters& calls) noexcept {
  queue_.remove(item);
  if (queue_.empty()) ceiling_ = SIZE_MAX;
  if (queue_.empty() && has_waiting()) door_.store(door::open, std::memory_order_relaxed);
  call_next(calls);
  if (watches()) post_pass();
  return is_unused();
}

void pool_engine::refuse_requests() noexcept {
  called_waiters calls;
  shard_locks const held{shards_};
  shut_door(calls);
}

void pool_engine::shut_door(called_waiters& calls) noexcept {
  door_.store(door::shut, std::memory_order_relaxed);
  set_caching();
  sweep();
  ++changes_;
  call_next(calls);
}

// Whether some stream's use of free memory is not known to be over.
bool pool_engine::is_open() noexcept {
  if (pool_order::may_complete(everywhere())) return true;
  try {
    return !pool_order::open_timelines(false, everywhere()).empty();
  } catch (std::bad_alloc const&) { return true; }
}

// The request that may lack nothing but that work completes, for which only the library thread looks, or null.
waiter* pool_engine::next_to_watch() noexcept {
  if (!has_waiting()) return nullptr;
  if (options_.hardened.enabled || deferred_) return queue_.next_waiting();
  return queue_.next_for_turn([this](waiter const& item) { return fits(item); });
}

bool pool_engine::watches() noexcept {
  auto const* const next = next_to_watch();
  return next && (options_.hardened.enabled || deferred_ || news() != next->note() || is_open());
}

// By the library thread. Where nothing tells whether something is new the request tries each time.
void pool_engine::watch() noexcept {
  sync::duration pause{};
  {
    shard_locks const held{shards_};
    if (!watches()) return;
    pause = std::min<sync::duration>(shortest_watch * ++watches_, longest_watch);
  }
  sync::sleep_for(pause);
  called_waiters calls;
  shard_locks const held{shards_};
  try {
    serve_deferred();
    order_.learn_completion(nullptr, everywhere());
  } catch (std::bad_alloc const&) {
    // The next look may have the host's memory.
  }
  order_.give_completed(everywhere());
  bool const tells = !options_.hardened.enabled && options_.cross_stream != reuse::own;
  auto* const next = next_to_watch();
  if (!next || (tells && news() == next->note())) return;
  if (tells) watches_ = 0;
  if (!tells) next->set_note(0);
  if (options_.hardened.enabled) give_turn(*next, calls); // a request that tries empties the quarantine
  call_next(calls);
}

} // namespace gpumem::detail
