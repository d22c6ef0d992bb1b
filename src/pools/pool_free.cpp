// Freeing, recorded uses, and what callers do wrong. Nothing here allocates host memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>
module gpumem:pool_free.impl;
import :pool_engine;
import :block;
import :chunks;
import :cuda;
import :device;
import :driver;
import :error;
import :magazines;
import :misuse;
import :ranges;
import :shelf;
import :stream;
import :sync;
import :tags;
import :timeline;

namespace gpumem::detail {
namespace {

// Uses on other streams that a live block keeps apart: the stream that frees it takes the fourth place.
inline constexpr std::size_t most_uses = tag_set::most - 1;

} // namespace

free_result pool_engine::deallocate(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
  auto* const seen = ranges_.granted_at(pointer);
  magazines::result near{false, nullptr};
  // Of a block that is the caller's, nothing changes behind his back.
  if (seen && seen->is_live() && (!bytes || *bytes == seen->requested.load(std::memory_order_relaxed)) &&
      seen->tags.empty() && !key.is_host() && !key.capturing()) {
    near = magazines_.put(*seen, key.order());
    if (near.kept && !near.out) return free_result::done;
  }
  sync::quick_lock const held{guard_};
  ++paths_.locked_calls;
  if (deferred_ && !key.capturing()) serve_deferred();
  if (near.out) end_cached(*near.out);
  if (!near.kept) {
    auto* const freed = checked_block(key, pointer, bytes, seen);
    if (!freed) return free_result::refused;
    live_.count(-static_cast<std::int64_t>(freed->requested.load(std::memory_order_relaxed)), 0);
    ++counts_.frees;
    --live_blocks_;
    note_stream(key.order());
    if (key.capturing()) {
      defer(*freed, key);
    } else {
      if (!freed->tags.empty()) prune(freed->tags);
      // What the host frees nobody uses any more, but for recorded uses.
      if (!key.is_host()) freed->tags.add(end_use(key, freed->bytes));
      end_block(*freed);
    }
    if (magazines_.starved()) sweep();
  }
  return abandoned_ && live_blocks_ == 0 ? free_result::last : free_result::done;
}

// `seen`: what was found without the lock, and is right if it is still there.
block* pool_engine::checked_block(stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
                                  block* seen) noexcept {
  auto* const found = seen && seen->pointer() == pointer ? seen : ranges_.granted_at(pointer);
  if (!found || !found->is_live()) return explain_misuse(key, pointer, bytes);
  if (bytes && *bytes != found->requested.load(std::memory_order_relaxed)) return explain_misuse(key, pointer, bytes);
  return found;
}

block* pool_engine::explain_misuse(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
  auto const refuse = [&](misuse::kind what, std::size_t expected) -> block* {
    report_misuse({what, pointer, bytes.value_or(0), expected, key.id(), options_.name.c_str()});
    return nullptr;
  };
  auto const* const home = chunks_.covering(pointer);
  auto const* const found = home ? range_map::covering(*home, pointer) : nullptr;
  if (!found || found->now() == block_state::hole) return refuse(misuse::kind::foreign_pointer, 0);
  auto const requested = found->requested.load(std::memory_order_relaxed);
  if (found->now() == block_state::deferred) return refuse(misuse::kind::double_free, requested);
  if (!found->is_live()) return refuse(misuse::kind::double_free, 0);
  return refuse(found->pointer() != pointer ? misuse::kind::foreign_pointer : misuse::kind::wrong_size, requested);
}

// The end of a use on a stream. Evidence is recorded where somebody will want it, and only on a stream that this call
// was given or that is gpumem's; the epoch is read after everything that the caller has enqueued. The stream's shelf
// counts first, so that streams of many threads do not meet at one counter.
tag pool_engine::end_use(stream_key const& key, std::size_t bytes) noexcept {
  auto& order = key.order();
  auto const most = most_unrecorded();
  bool many = false;
  if (auto* const own = ranges_.by_order().find(order); !own) {
    many = order.count_unrecorded(1, bytes, most);
  } else if (own->count_free(bytes, most)) {
    many = order.count_unrecorded(own->unrecorded_frees, own->unrecorded_bytes, most);
    own->unrecorded_frees = 0;
    own->unrecorded_bytes = 0;
  }
  bool const due = order.asked() || pressure_ || (many && shared_);
  if (due && key.has_handle() && options_.cross_stream != reuse::own && !lost()) {
    if (auto const recorded = order.record_precise(key.handle())) return {&order, recorded};
  }
  return {&order, order.now()};
}

// From live to free; the tags say what reuse will have to be ordered after.
void pool_engine::end_block(block& freed) noexcept {
  auto const& home = *freed.home;
  ranges_.release(freed, shared_ ? range_map::joining::alike : range_map::joining::any);
  after_free(home);
}

// A block that was kept near a thread, where its free was counted.
void pool_engine::end_cached(block& kept) noexcept {
  note_stream(*kept.tags.begin()->order);
  --live_blocks_;
  ++paths_.swept;
  end_block(kept);
}

bool pool_engine::sweep() noexcept {
  auto* all = magazines_.sweep();
  if (!all) return false;
  while (all) {
    auto& kept = *all;
    all = all->next;
    end_cached(kept);
  }
  return true;
}

void pool_engine::set_pressure(bool on) noexcept {
  if (pressure_ == on) return;
  pressure_ = on;
  set_caching();
}

// Threads keep what they free unless it is wanted elsewhere: under pressure, by upstream, by the end of the pool, by
// the host, which may not have what the device still uses, or where a call is to serve what was deferred.
void pool_engine::set_caching() noexcept {
  constexpr std::size_t most = std::size_t{64} << 20, small_pools = std::size_t{1} << 20;
  bool const wanted = pressure_ || abandoned_ || deferred_ || upstream_->host_accessible() ||
                      chunks_.reserved() > options_.release_threshold;
  auto const least = std::min(chunks_.reserved() / 2, small_pools);
  magazines_.allow(!wanted, std::clamp(chunks_.reserved() / 100, least, most), shared_ ? most_unrecorded() : SIZE_MAX);
}

// From now on evidence is of use.
void pool_engine::begin_sharing() noexcept {
  shared_ = true;
  set_caching();
}

void pool_engine::after_free(chunk const& home) noexcept {
  if (pressure_) {
    auto const most = chunks_.limit() ? chunks_.limit() : chunks_.reserved();
    auto const granted = chunks_.reserved() - ranges_.free_bytes();
    set_pressure(most - std::min(most, granted) < most / 16);
  }
  if (home.live_blocks > 0 || chunks_.reserved() <= options_.release_threshold) return;
  idle_passes_ = 0;
  post_pass();
}

// A capturing stream is not touched, and what it captures has not run: the free is done by the next call outside.
void pool_engine::defer(block& freed, stream_key const& key) noexcept {
  freed.become(block_state::deferred);
  freed.stream.store(&key.order(), std::memory_order_relaxed);
  freed.next = std::exchange(deferred_, &freed);
  set_caching();
}

void pool_engine::serve_deferred() noexcept {
  if (!deferred_) return;
  while (auto* const freed = deferred_) {
    deferred_ = freed->next;
    auto& order = *freed->stream.load(std::memory_order_relaxed);
    prune(freed->tags);
    freed->tags.add({&order, order.now()});
    end_block(*freed);
  }
  set_caching();
}

bool pool_engine::record_use(stream_key const& key, void* pointer) {
  key.order().prepare();
  sync::quick_lock held{guard_};
  if (!key.capturing()) serve_deferred();
  auto* const used = checked_block(key, pointer, std::nullopt, nullptr);
  if (!used) return false;
  note_stream(key.order());
  auto& order = key.order();
  if (!used->tags.find(order)) make_room(used->tags, key, held);
  auto const recorded = key.has_handle() ? order.record_precise(key.handle()) : epoch{0};
  used->tags.add({&order, recorded ? recorded : order.now()});
  return true;
}

// One more stream than can be kept apart: it waits for one of the others, which it then stands for. Where none has
// evidence to wait for, the host waits for all of them.
void pool_engine::make_room(tag_set& uses, stream_key const& key, sync::quick_lock& held) {
  uses.prune();
  if (uses.size() < most_uses) return;
  for (auto const& use : uses) {
    if (!key.order().ordered_after(*use.order, use.newest) &&
        !use.order->order_before(key.order(), key.handle(), use.newest)) {
      continue;
    }
    uses.remove(*use.order);
    return;
  }
  std::vector<timeline*> open;
  for (auto const& use : uses) open.push_back(use.order);
  held.unlock();
  synchronise_with(open, std::chrono::seconds{1});
  held.lock();
  uses.prune();
  if (uses.size() >= most_uses) throw_cuda_error(CUDA_ERROR_NOT_READY, "gpumem: record_use");
}

} // namespace gpumem::detail
