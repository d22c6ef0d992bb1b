// Requests that are let through to upstream, and those that wait.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <stdexcept>
module gpumem:limiting_adaptor.impl;
import :limiting_adaptor;
import :error;
import :fork;
import :services;
import :stream;
import :sync;
import :waiter;

namespace gpumem::detail {
namespace {

std::size_t checked_limit(std::size_t bytes) {
  if (bytes == 0) throw std::invalid_argument{"gpumem: a limit of 0 bytes grants nothing"};
  if (bytes > PTRDIFF_MAX) throw std::invalid_argument{"gpumem: no request can be as large as that limit"};
  return bytes;
}

expected<void*, failure> refused(waiter const& item, outcome why) noexcept {
  return unexpected<failure>{failure{why, 0, item.bytes()}};
}

} // namespace

limiter::limiter(limiting_options const& options)
    : queue_{options.most_overtakes}, limit_{checked_limit(options.limit)} {}

void limiter::set_limit(std::size_t bytes) {
  checked_limit(bytes);
  if (forked()) return;
  called_waiters calls;
  sync::quick_lock const held{guard_};
  limit_ = bytes;
  call_ended(calls);
  call_next(calls);
}

// After the limit has changed, and where the adaptor is closed.
void limiter::call_ended(called_waiters& calls) noexcept {
  for (auto* at = queue_.first(); at; at = waiter_list::after(*at)) {
    if (!waiter_list::has_turn(*at) && refusal(at->bytes())) give_turn(*at, calls);
  }
}

void limiter::close() noexcept {
  if (forked()) return;
  called_waiters calls;
  sync::quick_lock const held{guard_};
  closed_ = true;
  call_ended(calls);
}

std::size_t limiter::limit() noexcept {
  if (forked()) return 0;
  sync::quick_lock const held{guard_};
  return limit_;
}

std::size_t limiter::in_use() noexcept {
  if (forked()) return 0;
  sync::quick_lock const held{guard_};
  return in_use_;
}

std::optional<outcome> limiter::enter(std::size_t bytes, queueing how) noexcept {
  sync::quick_lock const held{guard_};
  if (auto const why = refusal(bytes)) return why;
  if (how == queueing::behind && !queue_.empty()) return outcome::exhausted;
  if (!queue_.may_be_overtaken() || !fits(bytes)) return outcome::exhausted;
  queue_.count_overtaking();
  in_use_ += bytes;
  return std::nullopt;
}

void limiter::leave(std::size_t bytes) noexcept {
  called_waiters calls;
  sync::quick_lock const held{guard_};
  in_use_ -= bytes;
  call_next(calls);
}

void limiter::end_use(std::size_t bytes) noexcept {
  called_waiters calls;
  sync::quick_lock const held{guard_};
  in_use_ -= bytes;
  ++frees_;
  call_next(calls);
}

// Why it cannot be met any more.
std::optional<outcome> limiter::refusal(std::size_t bytes) const noexcept {
  if (closed_) return outcome::closed;
  if (bytes > limit_) return outcome::too_large;
  return std::nullopt;
}

// Beside what is set aside for others than the caller.
bool limiter::fits(std::size_t bytes, std::size_t its_own) const noexcept {
  return bytes <= limit_ - std::min(limit_, in_use_ + queue_.set_aside() - its_own);
}

// As long as there is room for the next. A request that cannot be met any more, or has nothing left to wait for, is
// called to be told so.
void limiter::call_next(called_waiters& calls) noexcept {
  auto const may = [this](waiter const& item) {
    bool const nothing_held = in_use_ == 0 && queue_.set_aside() == 0;
    return refusal(item.bytes()) || (fits(item.bytes()) && (item.note() != frees_ || nothing_held));
  };
  while (auto* const next = queue_.next_for_turn(may)) {
    if (!refusal(next->bytes())) queue_.count_overtaking(next);
    give_turn(*next, calls);
  }
}

void limiter::give_turn(waiter& item, called_waiters& calls) noexcept {
  queue_.give_turn(item, item.bytes());
  calls.add(item);
}

// A request that comes is parked first, and one that comes first has its turn at once. One that was called asks again
// whether it fits: the limit may have been lowered.
limiter::turn limiter::begin_turn(waiter& item, bool upstream_waits) noexcept {
  called_waiters calls;
  sync::quick_lock held{guard_};
  if (item.has_passed(*this)) return {waiting::passed};
  if (auto const why = refusal(item.bytes())) return end(item, refused(item, *why), calls, held);
  if (!waiter_list::holds(item)) {
    bool const first = queue_.empty();
    if (!queue_.park(item)) return {waiting::answered};
    if (!first || !fits(item.bytes())) {
      call_next(calls);
      return {waiting::parked};
    }
    queue_.give_turn(item, item.bytes());
  } else if (!fits(item.bytes(), item.bytes())) {
    return wait_on(item, calls, held);
  }
  if (!upstream_waits) return {waiting::turn, frees_};
  queue_.remove(item);
  in_use_ += item.bytes();
  item.pass(*this);
  return {waiting::passed};
}

// A request that upstream refused asks again at once if something was freed since its turn began: that free did not
// call it. Where nothing is left to free it ends.
limiter::turn limiter::end_turn(waiter& item, turn const& mine, expected<void*, failure> result) noexcept {
  called_waiters calls;
  sync::quick_lock held{guard_};
  if (result || result.error().what != outcome::exhausted) return end(item, result, calls, held);
  bool const any = frees_ != mine.since;
  if (any && fits(item.bytes(), item.bytes())) return {waiting::turn, frees_};
  bool const others_hold = in_use_ > 0 || queue_.set_aside() > item.bytes();
  if (!any && !others_hold) return end(item, result, calls, held);
  item.set_note(mine.since);
  return wait_on(item, calls, held);
}

// Without its turn. What was set aside for it may be enough for a later request.
limiter::turn limiter::wait_on(waiter& item, called_waiters& calls, sync::quick_lock& held) noexcept {
  if (item.cancelled()) return end(item, refused(item, item.refusal()), calls, held);
  queue_.end_turn(item, fits(item.bytes(), item.bytes()));
  call_next(calls);
  return {waiting::parked};
}

// With its answer. It may have been what the others waited behind.
limiter::turn limiter::end(waiter& item, expected<void*, failure> result, called_waiters& calls,
                           sync::quick_lock& held) noexcept {
  queue_.remove(item);
  if (result && *result) in_use_ += item.bytes(); // a request may ask for its turn alone
  call_next(calls);
  held.unlock();
  item.settle(result);
  return {waiting::answered};
}

std::optional<bool> limiter::take_back(waiter& item) noexcept {
  called_waiters calls;
  sync::quick_lock const held{guard_};
  if (item.has_passed(*this)) return std::nullopt;
  if (!waiter_list::holds(item) || (waiter_list::has_turn(item) && !item.leaving())) return false;
  queue_.remove(item);
  call_next(calls);
  return true;
}

void limiter::on_refusal(waiter& item) noexcept {
  called_waiters calls;
  sync::quick_lock const held{guard_};
  if (!item.end_pass(*this)) return;
  in_use_ -= item.bytes();
  call_next(calls);
}

figures limiter::amend(figures seen) noexcept {
  if (forked()) return seen;
  sync::quick_lock const held{guard_};
  auto const here = queue_.read_figures();
  if (seen.limit == 0 || limit_ < seen.limit) seen.limit = limit_;
  seen.waiting += here.requests;
  seen.waiting_bytes += here.bytes;
  seen.oldest_wait_ns = std::max(seen.oldest_wait_ns, static_cast<std::uint64_t>(here.oldest.count()));
  return seen;
}

} // namespace gpumem::detail
