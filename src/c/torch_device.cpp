// PyTorch's memory on one device.
// SPDX-License-Identifier: Apache-2.0
#include "torch_device.hpp"

#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "failure.hpp"
#include "torch_streams.hpp"

import gpumem;

namespace gpumem::c {

void recorded_streams::add(void* block, stream user) {
  support::scoped_lock const lock{mutex_};
  auto& streams = streams_[block];
  blocks_.store(streams_.size(), std::memory_order_release);
  if (std::ranges::find(streams, user) == streams.end()) streams.push_back(user);
}

std::vector<recorded_streams::stream> recorded_streams::take_recorded(void* block) noexcept {
  support::scoped_lock const lock{mutex_};
  auto const found = streams_.find(block);
  if (found == streams_.end()) return {};
  auto streams = std::move(found->second);
  streams_.erase(found);
  blocks_.store(streams_.size(), std::memory_order_release);
  return streams;
}

namespace {

/// Sets a figure of which gpumem knows only the current value; its peak is the highest value that was read.
void set_read(gpumem_torch_figure& figure, std::uint64_t now, std::uint64_t& peak) noexcept {
  peak = std::max(peak, now);
  figure.current = now;
  figure.peak = peak;
}

} // namespace

torch_device::torch_device(int ordinal, gpumem_pool& pool, std::optional<std::size_t> limit)
    : ordinal_{ordinal}, pool_{pool}, limit_of_options_{limit ? *limit : pool_statistics().limit},
      limit_{pool, pool_statistics().limit}, mem_pools_{ordinal, pool, limit_} {}

// Returns the statistics of the pool. Returns zeros if the pool is a stack of resources that keeps no statistics.
gpumem::statistics torch_device::pool_statistics() {
  try {
    return pool_.statistics();
  } catch (std::exception const&) { return {}; }
}

void torch_device::set_limit(std::size_t bytes) {
  auto const most = limit_of_options_;
  limit_.set(most && bytes ? std::min(most, bytes) : std::max(most, bytes));
}

std::size_t torch_device::limit_of(double fraction, int ordinal) {
  if (fraction >= 1) return 0;
  auto const total = static_cast<double>(device{ordinal}.memory().total);
  return std::max(static_cast<std::size_t>(fraction * total), std::size_t{GPUMEM_ALIGNMENT}); // smallest valid limit
}

void* torch_device::allocate(std::size_t bytes, std::size_t room, void* stream, int promises) {
  if (bytes == 0) return nullptr;
  if (any_waiting_.load(std::memory_order_acquire)) [[unlikely]]
    free_waiting();
  auto* const on = named(stream);
  bool const in_place = !is_default(on) || (promises & GPUMEM_TORCH_DEVICE_CURRENT) != 0;
  auto* const pointer = in_place && !mem_pools_.routes() ? allocate_from_pool(room, on, promises)
                                                         : allocate_served(room, stream, promises);
  bool const rounded = room > bytes && rounded_.add(pointer, bytes);
  counters_.count_allocation(rounded ? bytes : room, room);
  return pointer;
}

void* torch_device::allocate_from_pool(std::size_t bytes, void* stream, int promises) {
  auto* const pointer = try_allocate(bytes, stream, promises);
  return pointer ? pointer : allocate_slow(bytes, stream);
}

// Allocates from the pool of PyTorch that serves the stream, or from the device's pool if none does. Makes the device
// current for a default stream, which belongs to the current device.
void* torch_device::allocate_served(std::size_t bytes, void* stream, int promises) {
  stream_ref const on{static_cast<CUstream>(named(stream))};
  std::optional<device_guard> current;
  bool const known = (promises & GPUMEM_TORCH_DEVICE_CURRENT) != 0;
  if (is_default(on.get()) && !known && device::current().ordinal() != ordinal_) current.emplace(device{ordinal_});
  auto const serving = mem_pools_.routes() ? mem_pools_.serving(stream) : nullptr;
  if (!serving) return allocate_from_pool(bytes, on.get(), promises);
  keep_promises(on.get(), ordinal_, promises);
  auto* const pointer = serving->allocate(on, bytes, GPUMEM_ALIGNMENT);
  return pointer ? pointer : allocate_slow(bytes, on.get());
}

// Allocates when try_allocate() found no memory. Waits for memory in use, and takes back the memory of ended pools of
// PyTorch. Throws if there still is none.
void* torch_device::allocate_slow(std::size_t bytes, void* stream) {
  stream_ref const on{static_cast<CUstream>(stream)};
  try {
    return pool_.allocate(on, bytes, GPUMEM_ALIGNMENT);
  } catch (out_of_memory const&) {
    if (!mem_pools_.any() || mem_pools_.routes()) throw;
    bool const ended = mem_pools_.reclaim({});
    if (auto* const found = mem_pools_.allocate_at_last(stream, bytes)) return found;
    if (!ended) throw;
  }
  return pool_.allocate(on, bytes, GPUMEM_ALIGNMENT);
}

// Allocates without a report of the failure. Returns null if the stream captures, or if there is no memory even after a
// bounded wait.
void* torch_device::try_allocate(std::size_t bytes, void* stream, int promises) {
  auto* const handle = static_cast<CUstream>(stream);
  if (bytes > PTRDIFF_MAX / 2 || !driver_api::driver_alive()) return nullptr;
  auto const serve = [&](extend::stream_key const& key) -> void* {
    if (key.identity().capturing() || detail::lost_error_of(ordinal_) != CUDA_SUCCESS) return nullptr;
    return pool_.try_allocate_keyed(&key, bytes, GPUMEM_ALIGNMENT);
  };
  auto* known = detail::owned_handles.find(handle);
  if (!known && handle == CU_STREAM_LEGACY)
    known = static_cast<extend::stream_timeline*>(legacy_.load(std::memory_order_acquire));
  if (known) [[likely]]
    return serve(extend::stream_key::of(*known, handle).with_waiting());
  keep_promises(stream, ordinal_, promises);
  auto const key = extend::identify(stream_ref{handle}, device{ordinal_});
  if (handle == CU_STREAM_LEGACY) legacy_.store(&key.identity().timeline(), std::memory_order_release);
  return serve(key.with_waiting());
}

// Finds a live block and the pool that owns it. A memory pool of PyTorch gets its chunks as blocks of the device's
// pool. Its first block may begin at the address of its chunk, so PyTorch's pools are searched first.
std::optional<gpumem_pool::owned_block> torch_device::find_owned(void const* pointer, torch_mem_pools::memory& owner) {
  owner = mem_pools_.any() ? mem_pools_.owner_of(pointer) : torch_mem_pools::memory{};
  if (!owner.pool) owner.pool = &pool_;
  return owner.pool->find_owned(pointer);
}

gpumem_pool::found_block torch_device::find(void const* pointer) {
  auto const found = mem_pools_.any() ? mem_pools_.find(pointer) : gpumem_pool::found_block{};
  return found.base ? found : pool_.find(pointer);
}

std::optional<gpumem_torch_block> torch_device::describe(void const* pointer) {
  torch_mem_pools::memory owner;
  auto const found = find_owned(pointer, owner);
  if (!found) return std::nullopt;
  auto* const stream = found->stream == GPUMEM_STREAM_LEGACY ? nullptr : found->stream;
  return gpumem_torch_block{sizeof(gpumem_torch_block),
                            ordinal_,
                            rounded_.find(pointer).value_or(found->bytes),
                            {owner.of.first, owner.of.second},
                            static_cast<CUstream_st*>(stream)};
}

// The record of the requested bytes is removed before the free, since the address may be allocated again right after
// the free. If the free fails, the record is added again.
std::optional<std::size_t> torch_device::free(void* pointer, std::vector<recorded_streams::stream>& users) {
  auto const requested = rounded_.take(pointer);
  std::optional<std::size_t> freed;
  try {
    freed = try_free(pointer, users);
  } catch (...) {
    if (requested) rounded_.add(pointer, *requested);
    throw;
  }
  if (freed) counters_.count_free(requested.value_or(*freed), *freed);
  if (!freed && requested) rounded_.add(pointer, *requested);
  return freed;
}

std::optional<std::size_t> torch_device::try_free(void* pointer, std::vector<recorded_streams::stream>& users) {
  if (users.empty() && !mem_pools_.any()) [[likely]]
    return pool_.try_free(pointer);
  torch_mem_pools::memory owner;
  auto const entry = find_owned(pointer, owner);
  if (!entry) return std::nullopt;
  std::erase(users, recorded_streams::stream{entry->stream, ordinal_});
  bool const captured = std::ranges::any_of(users, [](auto const& one) { return captures(one.handle); });
  // A graph orders the reuse of a block after uses by streams of its own capture, but not after other work on the
  // block.
  auto const in_order = [&](auto const& one) { return capture_of(one.handle) == entry->capture; };
  if (captured && !(owner.graph && entry->capture != 0 && std::ranges::all_of(users, in_order))) {
    support::scoped_lock const lock{mutex_};
    waiting_.push_back({pointer, std::move(users)});
    any_waiting_.store(true, std::memory_order_release);
  } else {
    order_after(pointer, owner, users);
    free_on(entry->stream, pointer, owner);
  }
  return entry->bytes;
}

// Frees a block on its stream. If the stream captures and the block is graph memory, the free asks the driver for the
// last nodes of the stream's captured work. The free may use the stream's handle for that, since the stream still
// lives.
void torch_device::free_on(void* stream, void* pointer, torch_mem_pools::memory const& owner) {
  stream_ref const on{static_cast<CUstream>(stream)};
  if (!owner.graph || !captures(on.get())) {
    owner.pool->try_free(pointer);
    return;
  }
  std::optional<device_guard> current; // a default stream belongs to the current device
  if (is_default(on.get())) current.emplace(device{ordinal_});
  owner.pool->free(on, pointer, std::nullopt);
}

// Makes the reuse of the block wait for the work that the streams have been given so far. If the block is graph memory
// and a stream does not capture, the reuse cannot be ordered after that stream. The host then waits for the stream, as
// it does after an error.
void torch_device::order_after(void* pointer, torch_mem_pools::memory const& owner,
                               std::vector<recorded_streams::stream> const& users) {
  for (auto const& used_stream : users) {
    device const device{used_stream.device};
    device_guard const scope{device};
    stream_ref const on{static_cast<CUstream>(used_stream.handle)};
    try {
      if (!owner.graph || captures(used_stream.handle)) {
        owner.pool->record_use(pointer, on);
        continue;
      }
    } catch (std::exception const&) {} // the stream was destroyed, or the host has no memory
    driver_api::check(extend::identify(on, device).identity().wait_on_host(), "cuStreamSynchronize");
  }
}

// Frees the blocks whose free had to wait for the end of a capture. A block stays in the list if one of its streams
// still captures, or if the reuse cannot be ordered after its streams.
void torch_device::free_waiting() noexcept {
  std::vector<waiting_free> still_waiting;
  {
    support::scoped_lock const lock{mutex_};
    std::swap(still_waiting, waiting_);
    any_waiting_.store(false, std::memory_order_release);
  }
  for (auto& waiting_block : still_waiting) {
    auto const result = outcome_of([&] {
      if (std::ranges::any_of(waiting_block.users, [](auto const& user) { return captures(user.handle); }))
        throw std::invalid_argument{"gpumem: the stream captures"};
      torch_mem_pools::memory owner;
      find_owned(waiting_block.pointer, owner);
      order_after(waiting_block.pointer, owner, waiting_block.users);
      owner.pool->try_free(waiting_block.pointer);
    });
    if (result == GPUMEM_GRANTED) continue;
    outcome_of([&] {
      support::scoped_lock const lock{mutex_};
      waiting_.push_back(std::move(waiting_block));
      any_waiting_.store(true, std::memory_order_release);
    });
  }
}

// Restores the live blocks of a pool's graph memory. A block that still waits for its free was counted as freed
// already, so it is not counted again. The restore decides whether it is live now.
void torch_device::restore(torch_mem_pools::id pool, std::span<gpumem_range const> live,
                           std::function<void(gpumem_range const&, bool now)> const& changed) {
  auto waiting_frees = take_waiting_of(pool);
  auto const is_freed = [&](void const* base) {
    return std::ranges::any_of(waiting_frees, [&](auto const& one) { return one.pointer == base; });
  };
  try {
    mem_pools_.restore(pool, live, [&](gpumem_range const& one, bool now) {
      if (!now && is_freed(one.base)) return;
      now ? counters_.count_allocation(one.requested, one.requested)
          : counters_.count_free(rounded_.take(one.base).value_or(one.requested), one.requested);
      changed(one, now);
    });
  } catch (...) {
    support::scoped_lock const lock{mutex_};
    for (auto& each : waiting_frees) waiting_.push_back(std::move(each));
    any_waiting_.store(!waiting_.empty(), std::memory_order_release);
    throw;
  }
}

std::vector<torch_device::waiting_free> torch_device::take_waiting_of(torch_mem_pools::id pool) {
  std::vector<waiting_free> taken;
  support::scoped_lock const lock{mutex_};
  for (auto one = waiting_.begin(); one != waiting_.end();) {
    auto const owner = mem_pools_.owner_of(one->pointer);
    bool const mine = owner.graph && owner.of == pool;
    if (mine) taken.push_back(std::move(*one));
    one = mine ? waiting_.erase(one) : std::next(one);
  }
  return taken;
}

void torch_device::trim() {
  constexpr std::chrono::seconds longest{1}; // the same bound as for a pool's wait when memory has run out
  if (any_waiting_.load(std::memory_order_acquire)) free_waiting();
  if (mem_pools_.routes()) return;
  mem_pools_.reclaim({});
  try {
    pool_.synchronize(longest);
  } catch (std::invalid_argument const&) {} // a stack cannot be synchronized
  pool_.trim(0);
}

// A block that still waits for its free is shown as free. A block of the device's pool that is a chunk of one of
// PyTorch's pools is shown as the ranges of that pool.
void torch_device::visit_ranges(std::function<void(torch_mem_pools::id, gpumem_range const&)> const& visitor) {
  std::vector<std::pair<torch_mem_pools::id, gpumem_range>> parts;
  mem_pools_.visit_ranges([&](torch_mem_pools::id pool, gpumem_range const& one) { parts.emplace_back(pool, one); });
  std::ranges::sort(parts, {}, [](auto const& one) { return one.second.base; });
  auto part = parts.begin();
  std::vector<void const*> freed_blocks;
  {
    support::scoped_lock const lock{mutex_};
    for (auto const& each : waiting_) freed_blocks.push_back(each.pointer);
  }
  auto const show = [&](torch_mem_pools::id pool, gpumem_range one) {
    if (std::ranges::find(freed_blocks, one.base) != freed_blocks.end()) one.live = 0;
    if (one.live) one.requested = rounded_.find(one.base).value_or(one.requested);
    visitor(pool, one);
  };
  auto const show_before = [&](void const* end) {
    for (; part != parts.end() && part->second.base < end; ++part) show(part->first, part->second);
  };
  // Shows a chunk of a pool of PyTorch: its ranges, and the gaps between them. A gap of up to 256 bytes is left out,
  // since no pool gives it out.
  auto const show_chunk = [&](gpumem_range const& chunk) {
    auto const pool = part->first;
    auto* chunk_begin = static_cast<char*>(chunk.base);
    auto* const end = chunk_begin + chunk.bytes;
    auto const show_gap = [&](char* until) {
      if (until - chunk_begin > GPUMEM_ALIGNMENT)
        visitor(pool, {sizeof(gpumem_range), chunk_begin, static_cast<std::uint64_t>(until - chunk_begin), 0, 0, 0,
                       chunk.base, chunk.bytes});
    };
    for (; part != parts.end() && part->second.base < end; ++part) {
      auto one = part->second;
      show_gap(static_cast<char*>(one.base));
      one.region = chunk.base;
      one.region_bytes = chunk.bytes;
      show(part->first, one);
      chunk_begin = static_cast<char*>(one.base) + one.bytes;
    }
    show_gap(end);
  };
  pool_.visit_ranges([&](gpumem_range const& one) {
    auto const* const end = static_cast<char const*>(one.base) + one.bytes;
    show_before(one.base);
    bool const holds = part != parts.end() && part->second.base < end;
    if (!holds) return show({}, one);
    show_chunk(one);
  });
  show_before(reinterpret_cast<void const*>(~std::uintptr_t{0}));
}

void torch_device::read_statistics(gpumem_torch_statistics& statistics) {
  counters_.read(statistics);
  auto const now = pool_statistics();
  support::scoped_lock const lock{mutex_};
  auto const& then = at_reset_;
  auto const use_of_limit = limit_.drawn();
  statistics.reserved = {now.reserved + use_of_limit, now.peak_reserved, now.reserved_in_all - then.reserved_in_all,
                         now.reserved_in_all - now.reserved - (then.reserved_in_all - then.reserved)};
  statistics.reserved.peak = std::max(statistics.reserved.peak, statistics.reserved.current);
  statistics.pages.allocated = now.upstream_allocations - then.upstream_allocations;
  statistics.pages.freed = now.upstream_frees - then.upstream_frees;
  set_read(statistics.pages, now.upstream_allocations - now.upstream_frees, peak_pages_);
  set_read(statistics.free, now.free + now.cached, peak_free_);
  set_read(statistics.free_ranges, now.free_ranges, peak_free_ranges_);
  statistics.largest_free = now.largest_free;
  statistics.limit = use_of_limit > 0 ? limit_.limit() : now.limit;
}

void torch_device::reset_peaks() {
  counters_.reset_peaks();
  try {
    pool_.reset_peaks();
  } catch (std::invalid_argument const&) {} // a stack cannot reset its peaks
  support::scoped_lock const lock{mutex_};
  peak_pages_ = peak_free_ranges_ = peak_free_ = 0;
}

void torch_device::reset_totals() {
  counters_.reset_totals();
  auto const now = pool_statistics();
  support::scoped_lock const lock{mutex_};
  at_reset_ = now;
}

} // namespace gpumem::c
