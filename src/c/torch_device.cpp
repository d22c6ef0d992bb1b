// PyTorch's memory on one device.
// SPDX-License-Identifier: Apache-2.0
#include "torch_device.hpp"

#include <cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <utility>
#include <vector>
#include <optional>

import gpumem;

namespace gpumem::c {
namespace {

/// PyTorch's handle 0 is the legacy stream on every thread; gpumem's handle 0 is a different stream on each.
stream_ref named(void* stream) noexcept {
  return stream_ref{static_cast<CUstream>(stream ? stream : GPUMEM_STREAM_LEGACY)};
}

/// Sets a figure of which only the current value and a peak are known.
void set_read(gpumem_torch_figure& figure, std::uint64_t now, std::uint64_t& peak) noexcept {
  peak = std::max(peak, now);
  figure.current = now;
  figure.peak = peak;
}

} // namespace

torch_device::torch_device(int ordinal, gpumem_pool& pool, std::optional<std::size_t> limit)
    : ordinal_{ordinal}, pool_{pool}, limit_{limit ? *limit : pool_statistics().limit}, mem_pools_{ordinal, pool} {}

// A stack may keep no statistics.
gpumem::statistics torch_device::pool_statistics() {
  try {
    return pool_.statistics();
  } catch (std::exception const&) { return {}; }
}

void torch_device::set_share(double fraction) {
  auto const share = static_cast<std::size_t>(fraction * static_cast<double>(device{ordinal_}.memory().total));
  if (fraction < 1) return pool_.set_limit(limit_ ? std::min(limit_, share) : share);
  pool_.set_limit(limit_);
}

void* torch_device::allocate(std::size_t bytes, void* stream, int promises) {
  if (bytes == 0) return nullptr;
  if (any_waiting_.load(std::memory_order_acquire)) [[unlikely]]
    free_waiting();
  auto const on = named(stream);
  std::optional<device_guard> current; // a legacy stream belongs to the current device
  bool const known = (promises & GPUMEM_TORCH_DEVICE_CURRENT) != 0;
  if (on.get() == CU_STREAM_LEGACY && !known && device::current().ordinal() != ordinal_)
    current.emplace(device{ordinal_});
  auto* const serving = mem_pools_.routes() ? mem_pools_.serving(stream) : nullptr;
  auto* pointer = serving ? serving->allocate(on, bytes, GPUMEM_ALIGNMENT) : try_allocate(bytes, on.get(), promises);
  if (!pointer) pointer = allocate_slow(bytes, on.get());
  counters_.count_allocation(bytes);
  return pointer;
}

// Waits for memory that is in use, gets that of ended pools, and tells of a failure.
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

// Returns null if the stream captures, or if there is no memory at once.
void* torch_device::try_allocate(std::size_t bytes, void* stream, int promises) {
  using extend::stream_key;
  auto* const handle = static_cast<CUstream>(stream);
  if (bytes > PTRDIFF_MAX / 2 || !driver_api::driver_alive()) return nullptr;
  auto const key = [&] {
    if (handle != CU_STREAM_LEGACY) return extend::identify(stream_ref{handle}, device{ordinal_});
    if (auto* const known = legacy_.load(std::memory_order_acquire))
      return stream_key::of(*static_cast<extend::stream_timeline*>(known), handle);
    auto const first = extend::identify(stream_ref{handle}, device{ordinal_});
    legacy_.store(&first.timeline(), std::memory_order_release);
    return first;
  }();
  if (key.capturing() || device{ordinal_}.lost()) return nullptr;
  if ((promises & GPUMEM_TORCH_STREAM_LIVES) != 0 && handle != CU_STREAM_LEGACY && !key.timeline().owns_handle())
    static_cast<void>(*new gpumem::stream{gpumem::stream::adopt(handle)}); // the promise is never taken back
  return pool_.try_allocate_keyed(&key, bytes, GPUMEM_ALIGNMENT);
}

std::optional<std::size_t> torch_device::bytes_of(void const* pointer) {
  auto const owner = mem_pools_.any() ? mem_pools_.owner_of(pointer) : torch_mem_pools::memory{};
  return (owner.pool ? *owner.pool : pool_).bytes_of(pointer);
}

// A chunk of a pool of PyTorch is a block of the device's pool, and may begin at the address of its first block.
bool torch_device::free(void* pointer, std::vector<void*> users) {
  auto const owner = mem_pools_.any() ? mem_pools_.owner_of(pointer) : torch_mem_pools::memory{};
  auto& from = owner.pool ? *owner.pool : pool_;
  if (!users.empty()) [[unlikely]] {
    auto const bytes = from.bytes_of(pointer);
    if (!bytes) return false;
    counters_.count_free(*bytes);
    if (mem_pools_.routes()) { // a stream may capture
      support::scoped_lock const held{mutex_};
      waiting_.push_back({pointer, std::move(users)});
      any_waiting_.store(true, std::memory_order_release);
      return true;
    }
    if (owner.graph) users.clear(); // the order of its launches is that of the captures
    free_after(pointer, from, users);
    return true;
  }
  auto const bytes = from.try_free(pointer);
  if (bytes) counters_.count_free(*bytes);
  return bytes.has_value();
}

// If the reuse cannot be ordered after a stream, waits for the stream.
void torch_device::free_after(void* pointer, gpumem_pool& owner, std::vector<void*> const& users) {
  device const where{ordinal_};
  device_guard const scope{where};
  for (auto* const each : users) {
    stream_ref const on{static_cast<CUstream>(each)};
    try {
      owner.record_use(pointer, on);
    } catch (std::exception const&) {
      driver_api::check(extend::identify(on, where).wait_on_host(), "cuStreamSynchronize");
    }
  }
  owner.try_free(pointer);
}

void torch_device::free_waiting() {
  if (mem_pools_.routes()) return;
  std::vector<waiting_free> waiting;
  {
    support::scoped_lock const held{mutex_};
    std::swap(waiting, waiting_);
    any_waiting_.store(false, std::memory_order_release);
  }
  for (auto& [pointer, users] : waiting) {
    auto const owner = mem_pools_.owner_of(pointer);
    if (owner.graph) users.clear();
    free_after(pointer, owner.pool ? *owner.pool : pool_, users);
  }
}

void torch_device::trim() {
  constexpr std::chrono::seconds longest{1}; // as long as a pool waits at out-of-memory; the rest stays
  if (any_waiting_.load(std::memory_order_acquire)) free_waiting();
  if (mem_pools_.routes()) return;
  mem_pools_.reclaim({});
  try {
    pool_.synchronize(longest);
  } catch (std::invalid_argument const&) {} // a stack over a pool
  pool_.trim(0);
}

// Memory of PyTorch's pools is shown in place of the blocks of the device's pool that hold it.
void torch_device::visit_ranges(std::function<void(torch_mem_pools::id, gpumem_range const&)> const& visitor) {
  std::vector<std::pair<torch_mem_pools::id, gpumem_range>> parts;
  mem_pools_.visit_ranges([&](torch_mem_pools::id pool, gpumem_range const& one) { parts.emplace_back(pool, one); });
  std::ranges::sort(parts, {}, [](auto const& one) { return one.second.base; });
  auto part = parts.begin();
  auto const show_before = [&](void const* end) {
    for (; part != parts.end() && part->second.base < end; ++part) visitor(part->first, part->second);
  };
  pool_.visit_ranges([&](gpumem_range const& one) {
    auto* const end = static_cast<char const*>(one.base) + one.bytes;
    show_before(one.base);
    bool const holds = part != parts.end() && part->second.base < end;
    holds ? show_before(end) : visitor({}, one);
  });
  show_before(reinterpret_cast<void const*>(~std::uintptr_t{0}));
}

void torch_device::read_statistics(gpumem_torch_statistics& into) {
  counters_.read(into);
  auto const now = pool_statistics();
  support::scoped_lock const held{mutex_};
  auto const& then = at_reset_;
  into.reserved = {now.reserved + mem_pools_.reserved_elsewhere(), now.peak_reserved,
                   now.reserved_in_all - then.reserved_in_all,
                   now.reserved_in_all - now.reserved - (then.reserved_in_all - then.reserved)};
  into.reserved.peak = std::max(into.reserved.peak, into.reserved.current);
  into.pages.allocated = now.upstream_allocations - then.upstream_allocations;
  into.pages.freed = now.upstream_frees - then.upstream_frees;
  set_read(into.pages, now.upstream_allocations - now.upstream_frees, peak_pages_);
  set_read(into.free, now.free + now.cached, peak_free_);
  set_read(into.free_ranges, now.free_ranges, peak_free_ranges_);
  into.largest_free = now.largest_free;
  into.limit = now.limit;
}

void torch_device::reset_peaks() {
  counters_.reset_peaks();
  pool_.reset_peaks();
  support::scoped_lock const held{mutex_};
  peak_pages_ = peak_free_ranges_ = peak_free_ = 0;
}

void torch_device::reset_totals() {
  counters_.reset_totals();
  auto const now = pool_statistics();
  support::scoped_lock const held{mutex_};
  at_reset_ = now;
}

} // namespace gpumem::c
