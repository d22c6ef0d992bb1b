// Freeing, recorded uses, and what callers do wrong. Nothing here allocates host memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>
module gpumem:pool_free.impl;
import :pool_engine;
import :chunks;
import :cuda;
import :device;
import :driver;
import :error;
import :misuse;
import :ranges;
import :stream;
import :sync;
import :tags;
import :timeline;

namespace gpumem::detail {
namespace {

// Uses on other streams that a live block keeps apart: the stream that frees it takes the fourth place.
inline constexpr std::size_t most_uses = tag_set::most - 1;

} // namespace

bool pool_engine::deallocate(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
  sync::lock const held{guard_};
  if (!key.capturing()) serve_deferred();
  auto* const freed = checked_block(key, pointer, bytes);
  if (!freed) return false;
  counts_.live -= freed->requested;
  ++counts_.frees;
  note_stream(key.order());
  if (key.capturing()) {
    defer(*freed, key);
  } else {
    prune(freed->tags);
    // What the host frees nobody uses any more, but for recorded uses.
    if (!key.is_host()) freed->tags.add(end_use(key, freed->bytes));
    end_block(*freed);
  }
  return true;
}

block* pool_engine::checked_block(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
  auto const refuse = [&](misuse::kind what, std::size_t expected) -> block* {
    report_misuse({what, pointer, bytes.value_or(0), expected, key.id(), options_.name.c_str()});
    return nullptr;
  };
  auto* const found = ranges_.covering(pointer);
  if (!found) return refuse(misuse::kind::foreign_pointer, 0);
  if (!found->live || found->deferred) return refuse(misuse::kind::double_free, found->deferred ? found->requested : 0);
  if (found->pointer() != pointer) return refuse(misuse::kind::foreign_pointer, found->requested);
  if (bytes && *bytes != found->requested) return refuse(misuse::kind::wrong_size, found->requested);
  return found;
}

// From live to free; the tags say what reuse will have to be ordered after.
void pool_engine::end_block(block& freed) noexcept {
  auto const& home = *freed.home;
  ranges_.release(freed);
  join_neighbours(freed);
  after_free(home);
}

// The end of a use on a stream. Evidence is recorded where somebody will want it, and only on a stream that this call
// was given or that is gpumem's; the epoch is read after everything that the caller has enqueued.
tag pool_engine::end_use(stream_key const& key, std::size_t bytes) noexcept {
  auto& order = key.order();
  bool const many = order.count_unrecorded(bytes, std::max(chunks_.reserved() / 16, granule));
  bool const due = order.asked() || pressure_ || (many && shared_);
  if (due && key.has_handle() && options_.cross_stream != reuse::own && !device_.lost()) {
    if (auto const recorded = order.record_precise(key.handle())) return {&order, recorded, order.waitable()};
  }
  return {&order, order.now(), false};
}

bool pool_engine::join_if_alike(block& lower, block& upper) noexcept {
  prune(lower.tags);
  prune(upper.tags);
  if (shared_ && !lower.tags.same_streams(upper.tags)) return false;
  if (!ranges_.join(lower, upper)) return false;
  ++counts_.joins;
  return true;
}

void pool_engine::join_neighbours(block& freed) noexcept {
  if (auto* const upper = ranges_.above(freed)) join_if_alike(freed, *upper);
  if (auto* const lower = ranges_.below(freed)) join_if_alike(*lower, freed);
}

void pool_engine::after_free(chunk const& home) noexcept {
  if (pressure_) {
    auto const most = chunks_.limit() ? chunks_.limit() : chunks_.reserved();
    auto const granted = chunks_.reserved() - ranges_.free_bytes();
    pressure_ = most - std::min(most, granted) < most / 16;
  }
  if (home.live_blocks > 0 || chunks_.reserved() <= options_.release_threshold) return;
  idle_passes_ = 0;
  post_pass();
}

// A capturing stream is not touched, and what it captures has not run: the free is done by the next call outside.
void pool_engine::defer(block& freed, stream_key const& key) noexcept {
  freed.deferred = true;
  freed.stream = &key.order();
  freed.next_deferred = std::exchange(deferred_, &freed);
}

void pool_engine::serve_deferred() noexcept {
  while (auto* const freed = deferred_) {
    deferred_ = std::exchange(freed->next_deferred, nullptr);
    freed->deferred = false;
    prune(freed->tags);
    freed->tags.add({freed->stream, freed->stream->now(), false});
    end_block(*freed);
  }
}

bool pool_engine::record_use(stream_key const& key, void* pointer) {
  key.order().prepare();
  sync::lock held{guard_};
  if (!key.capturing()) serve_deferred();
  auto* const used = checked_block(key, pointer, std::nullopt);
  if (!used) return false;
  note_stream(key.order());
  auto& order = key.order();
  if (!used->tags.find(order)) make_room(used->tags, key, held);
  auto const recorded = key.has_handle() ? order.record_precise(key.handle()) : epoch{0};
  used->tags.add(recorded ? tag{&order, recorded, order.waitable()} : tag{&order, order.now(), false});
  return true;
}

// One more stream than can be kept apart: it waits for one of the others, which it then stands for. Where none has
// evidence to wait for, the host waits for all of them.
void pool_engine::make_room(tag_set& uses, stream_key const& key, sync::lock& held) {
  uses.prune();
  if (uses.size() < most_uses) return;
  for (auto const& use : uses) {
    if (!key.order().ordered_after(*use.order, use.newest) &&
        !(use.precise && use.order->order_before(key.order(), key.handle(), use.newest))) {
      continue;
    }
    uses.remove(*use.order);
    return;
  }
  std::vector<timeline*> open;
  for (auto const& use : uses) open.push_back(use.order);
  held.unlock();
  synchronise_with(open, device_, std::chrono::seconds{1});
  held.lock();
  uses.prune();
  if (uses.size() >= most_uses) throw cuda_error{static_cast<cudaError_t>(CUDA_ERROR_NOT_READY), "gpumem: record_use"};
}

} // namespace gpumem::detail
