// PyTorch's memory on one device.
// SPDX-License-Identifier: Apache-2.0
#include "torch_device.hpp"

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <exception>
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
    : ordinal_{ordinal}, pool_{pool}, limit_{limit ? *limit : pool_statistics().limit} {}

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
  auto const on = named(stream);
  std::optional<device_guard> current; // a legacy stream belongs to the current device
  bool const known = (promises & GPUMEM_TORCH_DEVICE_CURRENT) != 0;
  if (on.get() == CU_STREAM_LEGACY && !known && device::current().ordinal() != ordinal_) current.emplace(device{ordinal_});
  auto* const pointer = try_allocate(bytes, on.get(), promises);
  // The other call waits for memory that is in use, and tells of a failure.
  auto* const found = pointer ? pointer : pool_.allocate(on, bytes, GPUMEM_ALIGNMENT);
  counters_.count_allocation(bytes);
  return found;
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

void torch_device::read_statistics(gpumem_torch_statistics& into) {
  counters_.read(into);
  auto const now = pool_statistics();
  support::scoped_lock const held{mutex_};
  auto const& then = at_reset_;
  into.reserved = {now.reserved, now.peak_reserved, now.reserved_in_all - then.reserved_in_all,
                   now.reserved_in_all - now.reserved - (then.reserved_in_all - then.reserved)};
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
