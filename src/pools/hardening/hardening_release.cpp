// Frees blocks of a hardened pool that leave its quarantine, reports overwritten bytes, and ends the pool.
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
import :backoff;
import :block_history;
import :deferred_release;
import :driver;
import :guarded_block;
import :guarded_blocks;
import :hardening;
import :misuse;
import :pool_engine;
import :pool_reports;
import :services;
import :stream;
import :stream_timeline;
import :sync;
import :timer;
import :tuning;

namespace gpumem::detail {

// Checks blocks in the quarantine, and frees those that leave it. After the driver's end, frees all blocks without a
// check. Does this also if the pool ends on a lost device, where no use becomes complete.
void hardening::advance(stream_key const* asking, std::size_t keep) noexcept {
  guarded_block* outgoing = nullptr;
  {
    lock const held{mutex_};
    bool const over = !driver_alive() || (closing_ && engine_.lost());
    outgoing = over ? quarantine_.give_up() : quarantine_.advance(asking, keep);
  }
  while (outgoing) {
    auto& each = *outgoing;
    outgoing = each.next;
    release(each);
  }
}

// Reports overwritten bytes, erases the block's record, and then frees the block to the engine, which allocates the
// pool's memory. The record goes first, because the engine may allocate the memory again right after the free.
void hardening::release(guarded_block& outgoing) noexcept {
  auto* const base = outgoing.base();
  auto const allocated = outgoing.allocated;
  {
    lock const held{mutex_};
    if (outgoing.report.any()) report_corruption(outgoing);
    blocks_.remove(outgoing);
  }
  engine_.deallocate(stream_key::host(), base, allocated);
  lock const held{mutex_};
  ++released_;
}

void hardening::report_corruption(guarded_block const& outgoing) noexcept {
  auto const say = [&](misuse::kind what, corruption const& found, std::ptrdiff_t nearest) {
    mutex_.assert_held();
    if (found.bytes == 0) return;
    misuse wrong{what, outgoing.user, 0, outgoing.bytes, outgoing.freed_on};
    wrong.offset = nearest;
    wrong.overwritten = found.bytes;
    report(wrong);
  };
  auto const& found = outgoing.report;
  auto const signed_size = [](std::size_t n) { return static_cast<std::ptrdiff_t>(n); };
  say(misuse::kind::overrun, found.overrun, signed_size(outgoing.bytes + found.overrun.first));
  say(misuse::kind::underrun, found.underrun, signed_size(found.underrun.last) - signed_size(layout_.guard));
  say(misuse::kind::use_after_free, found.after_free, signed_size(found.after_free.first));
}

// Calls advance() until the goal or the deadline is reached, or the device is lost. Returns whether any block has gone
// to the engine.
bool hardening::drain(sync::time_point deadline, until goal) noexcept {
  auto const state = [this] {
    lock const held{mutex_};
    return std::pair{released_, blocks_.frees() - released_};
  };
  auto const before = state().first;
  for (backoff pause{tuning::max_poll_pause};;) {
    advance(nullptr, 0);
    auto const [released, left] = state();
    if (left == 0 || (goal == until::something && released != before)) return released != before;
    if (sync::now() >= deadline || engine_.lost()) return released != before;
    sync::sleep_for(pause.next());
  }
}

// Polls for up to 1 ms. The check copies complete blocks to the host, which takes less time.
void hardening::flush() noexcept { drain(sync::now() + max_flush_time, until::nothing_is_left); }

bool hardening::synchronize(sync::duration longest) noexcept {
  drain(deadline_after(longest), until::nothing_is_left);
  lock const held{mutex_};
  return blocks_.frees() == released_;
}

void hardening::reset_peaks() {
  lock const held{mutex_};
  blocks_.reset_peak();
}

std::optional<owned_block> hardening::find_owned(void const* pointer) {
  lock const held{mutex_};
  auto const* const found = blocks_.find_live(pointer);
  if (!found) return std::nullopt;
  return owned_block{found->bytes, found->timeline};
}

std::optional<block_info> hardening::find(void const* pointer) {
  lock const held{mutex_};
  auto const* const found = blocks_.find_containing(pointer);
  if (!found) return std::nullopt;
  return block_info{found->user, found->live ? found->bytes : 0, found->allocated, found->stream, found->live};
}

live_blocks hardening::find_live() {
  lock const held{mutex_};
  return blocks_.all_live();
}

std::vector<block_event> hardening::history(void const* pointer) {
  lock const held{mutex_};
  return blocks_.history().all(pointer);
}

statistics hardening::amend(statistics seen) {
  lock const held{mutex_};
  blocks_.amend(seen);
  seen.failures = failures_;
  seen.quarantined = quarantine_.bytes();
  return seen;
}

void hardening::drop_last_handle() noexcept {
  bool last = false;
  {
    lock const held{mutex_};
    no_handles_ = true;
    last = held_blocks_ == 0 && !std::exchange(closing_, true);
  }
  if (last) close();
}

// Ends the pool now if all blocks are complete; otherwise a timer calls expire() on the library thread to try again.
// Requests the events that are missing at once: the caller's next call on a stream may be its last.
void hardening::close() noexcept {
  retry_releases();
  advance(nullptr, 0);
  if (end_if_empty()) return;
  list_closed(engine_.where() ? engine_.where()->ordinal() : -1);
  request_events(engine_.reserved());
  start_timer(*this, sync::now());
}

bool hardening::end_if_empty() noexcept {
  {
    lock const held{mutex_};
    if (blocks_.frees() != released_) return false;
  }
  unlist_closed();
  ended_(state_);
  return true;
}

// Tries again to end the pool, on the library thread. If no event covers the uses of the blocks that are left, further
// tries are of no use. The release is then deferred until an event is recorded that covers one of them.
void hardening::expire() noexcept {
  advance(nullptr, 0);
  if (end_if_empty()) return;
  bool const waits = process_is_exiting() || !may_advance();
  if (waits) defer_release();
  request_events(engine_.reserved());
  if (!waits) return start_timer(*this, sync::now() + pause_.next());
  if (!process_is_exiting() && may_advance()) retry_releases();
}

hardening::given_back hardening::give_back() noexcept {
  advance(nullptr, 0);
  return engine_.give_back() > 0 ? given_back::memory : given_back::nothing;
}

std::vector<stream_timeline*> hardening::streams_without_event() {
  lock const held{mutex_};
  return quarantine_.streams_in_use(true);
}

bool hardening::may_advance() noexcept {
  lock const held{mutex_};
  return quarantine_.may_advance();
}

} // namespace gpumem::detail
