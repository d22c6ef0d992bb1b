// What leaves the quarantine of a hardened pool, what was found there, and the pool's end.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>
module gpumem:hardening_release.impl;
import :hardening;
import :driver;
import :guarded_block;
import :leftover;
import :misuse;
import :pool_engine;
import :services;
import :stream;
import :sync;
import :timeline;
import :timer;

namespace gpumem::detail {
namespace {

using namespace std::chrono_literals;

inline constexpr sync::duration shortest_nap = 20us;
inline constexpr sync::duration longest_nap = 5ms;
inline constexpr sync::duration longest_pause = 1ms; // of the library thread

} // namespace

// On a lost device nothing runs any more, and nothing is seen to complete: a pool that ends returns what it owes.
void hardening::advance(stream_key const* asking, std::size_t keep) noexcept {
  guarded_block* leaving = nullptr;
  {
    lock const held{guard_};
    bool const over = !driver_alive() || (closing_ && engine_.lost());
    leaving = over ? quarantine_.give_up() : quarantine_.advance(asking, keep);
  }
  while (leaving) {
    auto& each = *leaving;
    leaving = each.next;
    release(each);
  }
}

// It is forgotten before the engine has it, which may grant it at once to somebody else.
void hardening::release(guarded_block& leaving) noexcept {
  auto* const base = leaving.base();
  auto const granted = leaving.granted;
  {
    lock held{guard_};
    if (leaving.found.any()) tell(leaving, held);
    blocks_.erase(reinterpret_cast<std::uintptr_t>(leaving.user));
  }
  engine_.deallocate(stream_key::host(), base, granted);
  lock const held{guard_};
  ++released_;
}

void hardening::tell(guarded_block const& leaving, lock& held) noexcept {
  auto const say = [&](misuse::kind what, damage const& found, std::ptrdiff_t nearest) {
    if (found.bytes == 0) return;
    misuse wrong{what, leaving.user, 0, leaving.bytes, leaving.freed_on};
    wrong.offset = nearest;
    wrong.overwritten = found.bytes;
    report(wrong, held);
  };
  auto const& found = leaving.found;
  auto const signed_size = [](std::size_t n) { return static_cast<std::ptrdiff_t>(n); };
  say(misuse::kind::overrun, found.overrun, signed_size(leaving.bytes + found.overrun.first));
  say(misuse::kind::underrun, found.underrun, signed_size(found.underrun.last) - signed_size(layout_.guard));
  say(misuse::kind::use_after_free, found.after_free, signed_size(found.after_free.first));
}

// Until something, or everything, has gone back to the engine; whether anything has.
bool hardening::drain(sync::time_point deadline, until goal) noexcept {
  auto const state = [this] {
    lock const held{guard_};
    return std::pair{released_, frees_ - released_};
  };
  auto const before = state().first;
  for (auto nap = shortest_nap;; nap = std::min(2 * nap, longest_nap)) {
    advance(nullptr, 0);
    auto const [released, left] = state();
    if (left == 0 || (goal == until::something && released != before)) return released != before;
    if (sync::now() >= deadline || engine_.lost()) return released != before;
    sync::sleep_for(nap);
  }
}

// Its own copies are short, so they are worth some looks.
void hardening::flush() noexcept { drain(sync::now() + longest_flush, until::nothing_is_left); }

bool hardening::settle(sync::duration longest) noexcept {
  drain(sync::now() + longest, until::nothing_is_left);
  lock const held{guard_};
  return frees_ == released_;
}

std::optional<block_info> hardening::find(void const* pointer) {
  lock const held{guard_};
  auto const* const found = covering(pointer);
  if (!found) return std::nullopt;
  return block_info{found->user, found->live ? found->bytes : 0, found->granted, found->stream, found->live};
}

std::vector<block_event> hardening::history(void const* pointer) {
  lock const held{guard_};
  return history_.all(pointer);
}

figures hardening::amend(figures seen) {
  lock const held{guard_};
  seen.live = live_;
  seen.peak_live = peak_live_;
  seen.allocations = allocations_;
  seen.frees = frees_;
  seen.failures = failures_;
  seen.quarantined = quarantine_.bytes();
  return seen;
}

void hardening::abandon() noexcept {
  bool last = false;
  {
    lock const held{guard_};
    abandoned_ = true;
    last = with_users_ == 0 && !std::exchange(closing_, true);
  }
  if (last) close();
}

// What is not complete yet the library thread looks at when it is.
void hardening::close() noexcept {
  revisit_left();
  advance(nullptr, 0);
  if (!end_if_empty()) start_timer(*this, sync::now());
}

bool hardening::end_if_empty() noexcept {
  {
    lock const held{guard_};
    if (frees_ != released_) return false;
  }
  ended_(whom_);
  return true;
}

// Blocks that no event covers would be looked at in vain: the pool is left behind until that changes.
void hardening::expire() noexcept {
  advance(nullptr, 0);
  if (end_if_empty()) return;
  if (leaving() || !may_advance()) {
    leave_behind();
    want_events();
    if (!leaving() && may_advance()) revisit_left();
    return;
  }
  start_timer(*this, sync::now() + std::min<sync::duration>(shortest_nap * ++passes_, longest_pause));
}

std::vector<timeline*> hardening::uncovered() {
  lock const held{guard_};
  return quarantine_.open_timelines(true);
}

bool hardening::may_advance() noexcept {
  lock const held{guard_};
  return quarantine_.may_advance();
}

} // namespace gpumem::detail
