// Allocations and frees of a hardened pool, blocks that leave its quarantine, and the end of the pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <base/tuning.hpp>
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>
module gpumem:hardening.impl;
import :hardening;
import :backoff;
import :block;
import :cuda;
import :deferred_release;
import :device;
import :driver;
import :error;
import :guarded_blocks;
import :labels;
import :memory_walk;
import :misuse;
import :pool_engine;
import :pool_options;
import :pool_parts;
import :pool_reports;
import :services;
import :stream;
import :stream_timeline;
import :sync;
import :timer;

namespace gpumem::detail {
namespace {

inline constexpr std::size_t max_reported_events = 16; // most events of the history in one report

std::optional<device> device_for(pool_engine& engine) {
  auto& upstream = engine.upstream();
  if (upstream.host_accessible() || (upstream.device_accessible() && engine.where())) return engine.where();
  throw std::invalid_argument{"gpumem: a pool cannot be hardened over memory that neither host nor device can touch"};
}

} // namespace

hardening::hardening(pool_engine& engine, void (*ended)(void* state) noexcept, void* state)
    : block_calls{engine, ended, state}, options_{engine.options().hardened}, layout_{guard_layout::of(options_)},
      by_host_{engine.upstream().host_accessible()}, by_device_{engine.upstream().device_accessible()},
      quarantine_label_{label_number("(quarantine)")}, blocks_{options_.history},
      quarantine_{device_for(engine), by_host_, layout_}, pause_{tuning::max_pass_pause} {}

expected<void*, failure> hardening::try_allocate(stream_key const& key, std::size_t bytes,
                                                 std::size_t alignment) noexcept {
  auto const refuse = [bytes](outcome reason, int code = 0) {
    return unexpected<failure>{failure{reason, code, bytes}};
  };
  auto const largest = engine_.options().largest_block; // the engine's block is larger by the guards
  if (largest && bytes > size_class::of(largest).bytes && !key.context().for_chunk()) return refuse(outcome::too_large);
  bool const capturing = key.asked().identity().capturing();
  if (engine_.lost()) return refuse(outcome::device_lost, engine_.where()->lost_error());
  if (capturing) return refuse(outcome::capture_unsupported);
  expected<void*, failure> result = refuse(outcome::exhausted);
  try {
    result = allocate(key, bytes, alignment);
  } catch (std::bad_alloc const&) { result = unexpected<failure>{no_host_memory(bytes)}; }
  if (!result) {
    lock const held{mutex_};
    failures_ += key.context().ends_if(result.error().reason);
  }
  return result;
}

expected<void*, failure> hardening::allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) {
  advance(&key, options_.quarantine);
  auto guarded = std::make_unique<guarded_block>();
  auto const total = layout_.total(bytes, alignment);
  auto const result = draw(key, [&] { return engine_.try_allocate(key, total, alignment); });
  if (!result) return unexpected<failure>{failure{result.error().reason, result.error().code, bytes}};
  auto& fresh = *guarded;
  fresh.front = layout_.front(alignment);
  fresh.user = static_cast<char*>(*result) + fresh.front;
  fresh.bytes = bytes;
  fresh.allocated = total;
  fresh.stream = key.identity().id();
  fresh.timeline = &key.identity().timeline();
  try {
    lock const held{mutex_};
    blocks_.add(std::move(guarded));
  } catch (...) {
    engine_.deallocate(key, *result, total);
    throw;
  }
  fill_guards(fresh, key);
  lock const held{mutex_};
  blocks_.make_live(fresh);
  ++held_blocks_;
  return fresh.user;
}

bool hardening::free_kept(stream_key const& key) noexcept {
  if (key.context().may_wait()) return drain(sync::now() + tuning::max_host_wait, until::something);
  advance(&key, 0);
  return true;
}

// Asks the engine for memory. If it has none, blocks leave the quarantine early and the engine is asked again. For a
// request that must not wait, only blocks whose uses are complete now leave the quarantine. Any other request polls for
// such blocks for up to `tuning::max_host_wait`.
template <class Attempt> expected<void*, failure> hardening::draw(stream_key const& key, Attempt attempt) noexcept {
  auto result = attempt();
  auto const exhausted = [&result] { return !result && result.error().reason == outcome::exhausted; };
  if (exhausted() && !key.context().may_wait()) {
    advance(&key, 0);
    return attempt();
  }
  for (auto const deadline = sync::now() + tuning::max_host_wait; exhausted() && drain(deadline, until::something);) {
    result = attempt();
  }
  return result;
}

// Fills a new block and its guards. If the host can touch the memory, it fills them immediately, because the engine
// hands out such memory only when no stream uses it. Otherwise the stream of the request fills them. For a request
// without a stream, a stream that belongs to the quarantine fills only the guards, not the block. A stream of another
// device fills nothing, since it might not reach the memory.
void hardening::fill_guards(guarded_block& fresh, stream_key const& key) noexcept {
  auto const runs = fresh.all(layout_);
  if (by_host_) {
    for (auto const& run : runs) fill_by_host(run, fill_pattern::guard);
    fresh.guards_filled = true;
  } else if (key.identity().is_host()) {
    lock const held{mutex_};
    quarantine_.fill_guards_alone(fresh);
  } else if (may_touch(key)) {
    fresh.guards_filled = fill(key, runs[0], fill_pattern::guard) && fill(key, runs[1], fill_pattern::guard);
    fresh.granted_use = {&key.identity().timeline(), key.identity().end_use(fresh.allocated, true)};
  }
}

bool hardening::may_touch(stream_key const& key) const noexcept {
  auto const where = engine_.where();
  return by_device_ && where && !key.identity().is_host() && key.identity().has_handle() &&
         key.identity().timeline().device() == where->ordinal() && !engine_.lost();
}

void hardening::deallocate(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
  auto* const guarded = claim(key, pointer, bytes);
  if (!guarded) return;
  retire(*guarded, key);
  engine_.set_label(guarded->base(), quarantine_label_);
  {
    lock const held{mutex_};
    quarantine_.put(*guarded);
  }
  advance(&key, engine_.has_waiting() ? 0 : options_.quarantine);
  bool last = false;
  {
    lock const held{mutex_};
    last = --held_blocks_ == 0 && no_handles_ && !std::exchange(closing_, true);
  }
  if (last) close();
}

// Marks the block as freed and returns it. If the free is a misuse, reports the misuse and returns null.
guarded_block* hardening::claim(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
  lock const held{mutex_};
  if (auto* const found = blocks_.end_life(pointer, bytes, key.identity().id())) return found;
  auto wrong = blocks_.explain(pointer, bytes);
  wrong.stream = key.identity().id();
  report(wrong);
  return nullptr;
}

// Reports a misuse with the history of its address. Unlocks while the user's handler runs.
void hardening::report(misuse misuse) noexcept {
  std::array<block_event, max_reported_events> events{};
  misuse.events = blocks_.history().newest(misuse.pointer, events.data(), events.size());
  misuse.history = events.data();
  misuse.resource = engine_.options().name.c_str();
  sync::scoped_unlock const during{mutex_};
  report_misuse(misuse);
}

// Enqueues the poison on the stream of the free, under three conditions: work may be enqueued on the stream, the stream
// is known to come after the fill of the allocation, and no use on another stream was recorded. If one of them does not
// hold, the quarantine poisons the block later, when all uses are complete. Whether or not it poisons the block,
// records an event if the stream can have one.
void hardening::retire(guarded_block& guarded, stream_key const& key) noexcept {
  if (guarded.has_recorded_uses) guarded.uses = engine_.recorded_uses(guarded.base());
  if (key.identity().is_host()) return;
  auto& timeline = key.identity().timeline();
  auto const& granted_use = guarded.granted_use;
  bool const free_is_later = !granted_use.timeline || granted_use.completed() ||
                             timeline.ordered_after(*granted_use.timeline, granted_use.newest);
  bool const capturing = key.asked().identity().capturing();
  if ((free_is_later || guarded.only_guards_filled) && !capturing && !guarded.has_recorded_uses && may_touch(key)) {
    auto const runs = guarded.inside(layout_);
    guarded.poisoned = fill(key, runs[0], fill_pattern::poison) && fill(key, runs[1], fill_pattern::poison);
  }
  if (free_is_later) guarded.granted_use = {};
  auto const recorded =
      capturing || !key.identity().has_handle() ? epoch{0} : timeline.record_later(key.identity().handle());
  auto const ended = recorded ? recorded : key.identity().end_use(guarded.allocated, true);
  guarded.uses.add({&timeline, ended}); // succeeds: a block has at most three recorded uses, and there is room for four
}

void hardening::record_use(stream_key const& key, void* pointer) {
  void* base = nullptr;
  {
    lock const held{mutex_};
    auto* const used = blocks_.find_live(pointer);
    if (!used) {
      auto wrong = blocks_.explain(pointer, std::nullopt);
      wrong.what = kind_of_record(wrong.what);
      wrong.stream = key.identity().id();
      return report(wrong);
    }
    used->has_recorded_uses = true;
    base = used->base();
  }
  engine_.record_use(key, base);
}

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
    end_quarantine(each);
  }
}

// Reports overwritten bytes, erases the block's record, and then frees the block to the engine, which allocates the
// pool's memory. The record goes first, because the engine may allocate the memory again right after the free.
void hardening::end_quarantine(guarded_block& outgoing) noexcept {
  auto* const base = outgoing.base();
  auto const allocated = outgoing.allocated;
  {
    lock const held{mutex_};
    if (outgoing.report.any()) report_corruption(outgoing);
    blocks_.remove(outgoing);
  }
  engine_.deallocate(stream_key::host(), base, allocated);
  lock const held{mutex_};
  ++engine_frees_;
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
    return std::pair{engine_frees_, blocks_.frees() - engine_frees_};
  };
  auto const before = state().first;
  for (backoff pause{tuning::max_poll_pause};;) {
    advance(nullptr, 0);
    auto const [freed, left] = state();
    if (left == 0 || (goal == until::something && freed != before)) return freed != before;
    if (sync::now() >= deadline || engine_.lost()) return freed != before;
    sync::sleep_for(pause.next());
  }
}

// Polls for up to 1 ms. The check copies complete blocks to the host, which takes less time.
bool hardening::flush() noexcept { return drain(sync::now() + max_flush_time, until::nothing_is_left); }

bool hardening::synchronize(sync::duration longest) noexcept {
  drain(deadline_after(longest), until::nothing_is_left);
  lock const held{mutex_};
  return blocks_.frees() == engine_frees_;
}

void hardening::reset_peaks() {
  {
    lock const held{mutex_};
    blocks_.reset_peak();
  }
  engine_.reset_peaks();
}

std::optional<owned_block> hardening::find_owned(void const* pointer) {
  lock const held{mutex_};
  auto const* const found = blocks_.find_live(pointer);
  if (!found) return std::nullopt;
  return owned_block{found->bytes, found->timeline};
}

bool hardening::set_label(void const* pointer, std::uint32_t label) noexcept {
  lock const held{mutex_};
  auto const* const found = blocks_.find_live(pointer);
  return found && engine_.set_label(found->base(), label);
}

memory_copy hardening::copy_memory() {
  auto copy = engine_.copy_memory();
  copy.statistics = read_statistics();
  return copy;
}

std::optional<block_info> hardening::find(void const* pointer) {
  {
    lock const held{mutex_};
    if (auto const* const found = blocks_.find_containing(pointer))
      return block_info{found->user, found->live ? found->bytes : 0, found->allocated, found->stream, found->live};
  }
  return engine_.find(pointer);
}

live_blocks hardening::find_live() {
  lock const held{mutex_};
  return blocks_.all_live();
}

std::vector<block_event> hardening::history(void const* pointer) {
  lock const held{mutex_};
  return blocks_.history().all(pointer);
}

statistics hardening::read_statistics() {
  auto statistics = engine_.read_statistics();
  lock const held{mutex_};
  blocks_.amend(statistics);
  statistics.failures = failures_ + engine_.requests().failures();
  statistics.quarantined = quarantine_.bytes();
  return statistics;
}

void hardening::drop_last_handle() noexcept {
  engine_.refuse_requests();
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
    if (blocks_.frees() != engine_frees_) return false;
  }
  unlist_closed();
  end();
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
