// Gives out memory of regions, and frees the regions at a reset.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <utility>
#include <vector>
module gpumem:monotonic_resource.impl;
import :monotonic_resource;
import :block;
import :cuda;
import :device;
import :driver;
import :error;
import :misuse;
import :pool_engine;
import :pool_resource;
import :pool_upstream;
import :process;
import :reuse_rules;
import :stream;
import :stream_timeline;
import :sync;

namespace gpumem::detail {
namespace {

pool_options checked(monotonic_options options) {
  if (options.region_size == 0 || options.region_size > PTRDIFF_MAX / 4)
    throw std::invalid_argument{"gpumem: the region_size of a monotonic_resource must be 1 byte to 2 EiB"};
  if (options.pool.limit)
    throw std::invalid_argument{"gpumem: the pool of a monotonic_resource gets its limit from `limit`"};
  options.pool.limit = options.limit;
  if (!options.pool.chunk_size) options.pool.chunk_size = options.region_size;
  return std::move(options.pool);
}

} // namespace

monotonic_state::monotonic_state(std::unique_ptr<pool_upstream> upstream, monotonic_options options)
    : region_size_{options.region_size}, pool_{new pool_state{std::move(upstream), checked(std::move(options))}} {}

void monotonic_state::add_handle() noexcept {
  sync::lock const lock{mutex_};
  ++handles_;
}

// The call that brings the last count to zero sees that under the lock under which it counts, and ends the state. All
// other calls do not touch the state after they unlock it. Does nothing in a forked child: the memory belongs to the
// parent.
void monotonic_state::drop_handle() noexcept {
  if (forked()) return;
  bool last = false;
  {
    sync::lock const lock{mutex_};
    --handles_;
    last = is_unused();
  }
  if (last) end();
}

// Frees the regions and destroys the state, which has no handle and no live block left. A region is freed in the order
// of the stream on which it was allocated, if that stream is gpumem's own or adopted. All other uses were recorded in
// the pool when their blocks were freed.
void monotonic_state::end() noexcept {
  {
    sync::lock const lock{mutex_};
    for (auto const& each : regions_)
      pool_->deallocate(each.home.identity().has_handle() ? each.home : stream_key::host(), each.base, each.bytes,
                        granule);
    regions_.clear();
  }
  delete this;
}

expected<void*, failure> monotonic_state::try_allocate(stream_key const& key, std::size_t bytes,
                                                       std::size_t alignment) noexcept {
  {
    sync::lock const lock{mutex_};
    if (!regions_.empty() && serves_stream(key)) {
      if (auto* const taken = take(regions_.back(), key, bytes, alignment)) return taken;
    }
  }
  auto const result = grow(key, bytes, alignment);
  if (result) return result;
  sync::lock const lock{mutex_};
  counts_.failures += !key.context().goes_on_after(result.error().reason);
  return unexpected<failure>{failure{result.error().reason, result.error().code, bytes}};
}

// Takes the bytes off a region. Returns null if they do not fit, or if the stream cannot wait for the region's
// allocation. A request of the host gets memory only if the host has seen that allocation complete.
void* monotonic_state::take(region& region, stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept {
  auto const address = reinterpret_cast<std::uintptr_t>(region.base) + region.used;
  auto const padding = (0 - address) & (std::max(alignment, granule) - 1);
  if (padding > region.largest() || bytes > region.largest() - padding) return nullptr;
  if (key.identity().is_host() ? !region.origin.completed() : !reuse_rules::wait_for(region.origin, key))
    return nullptr;
  region.used += padding + bytes;
  ++live_blocks_;
  ++counts_.allocations;
  counts_.live += bytes;
  counts_.peak_live = std::max(counts_.peak_live, counts_.live);
  return reinterpret_cast<void*>(address + padding);
}

// Allocates a region without the lock, since the upstream may be slow. If another thread has added a region meanwhile,
// both regions stay.
expected<void*, failure> monotonic_state::grow(stream_key const& key, std::size_t bytes,
                                               std::size_t alignment) noexcept {
  auto const size = std::max(region_size_, bytes);
  auto const start = std::max(alignment, granule);
  auto const result = pool_->try_allocate(key, size, start);
  if (!result) return result;
  try {
    key.identity().timeline().prepare();
    region fresh{static_cast<char*>(*result), size, 0, key.by_identity()};
    if (!key.identity().is_host()) {
      auto const recorded =
          key.identity().has_handle() ? key.identity().timeline().record_at_free(key.identity().handle()) : epoch{0};
      fresh.origin.assign({&key.identity().timeline(), recorded ? recorded : key.identity().end_use(size, true)});
    }
    sync::lock const lock{mutex_};
    regions_.push_back(fresh);
    return take(regions_.back(), key, bytes, alignment);
  } catch (...) { // the host is out of memory
    pool_->deallocate(key, *result, size, start);
    return unexpected<failure>{failure{outcome::exhausted, 0, bytes}};
  }
}

monotonic_state::region* monotonic_state::find(void const* pointer) noexcept {
  auto const found = std::ranges::find_if(
      regions_, [&](region const& each) { return pointer >= each.base && pointer < each.base + each.used; });
  return found == regions_.end() ? nullptr : &*found;
}

// Records the stream's use of the region in the pool. The pool then reuses the region only after this use, even if the
// free of the region does not come after it. If the recording fails, the host waits for the stream. A use by the
// region's own stream costs nothing now if a later call can record it: gpumem then has the stream's handle.
void monotonic_state::record_use(region& region, stream_key const& key) noexcept {
  if (key.identity().is_host()) return;
  if (key == region.home && region.home.identity().has_handle()) {
    region.used_at_home = true;
    return;
  }
  record_now(region, key);
}

void monotonic_state::record_now(region const& region, stream_key const& key) noexcept {
  try {
    pool_->record_use(key, region.base);
  } catch (...) { static_cast<void>(key.identity().wait_on_host()); }
}

void monotonic_state::deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t) noexcept {
  auto wrong = misuse::kind::foreign_pointer;
  bool freed = false;
  bool last = false;
  {
    sync::lock const lock{mutex_};
    auto* const found_region = find(pointer);
    if (found_region && !serves_stream(key)) {
      wrong = misuse::kind::unopened_device;
    } else if (found_region && live_blocks_ > 0 && bytes <= counts_.live) {
      record_use(*found_region, key);
      --live_blocks_;
      ++counts_.frees;
      counts_.live -= bytes;
      freed = true;
      last = is_unused();
    } else if (found_region) {
      wrong = misuse::kind::double_free;
    }
  }
  if (last) return end();
  if (freed) return;
  report_misuse({wrong, pointer, bytes, 0, key.identity().id(), pool_->engine().options().name.c_str()});
}

void monotonic_state::reset(stream_key const& key) noexcept {
  if (!driver_alive()) return;
  sync::lock const lock{mutex_};
  for (auto const& each : regions_) {
    if (each.used_at_home && !key.identity().is_host() && !(key == each.home)) record_now(each, each.home);
    pool_->deallocate(key, each.base, each.bytes, granule);
  }
  regions_.clear();
  counts_.frees += live_blocks_;
  counts_.live = 0;
  live_blocks_ = 0;
}

statistics monotonic_state::read_statistics() {
  if (forked()) return {};
  auto now = pool_->read_statistics();
  sync::lock const lock{mutex_};
  now.live = counts_.live;
  now.peak_live = counts_.peak_live;
  now.allocations = counts_.allocations;
  now.frees = counts_.frees;
  now.failures = counts_.failures;
  return now;
}

void reset_monotonic(monotonic_state& state, stream_ref stream) {
  throw_if_child();
  auto const where = state.where();
  state.reset(where ? identify(stream, *where) : identify(stream));
}

} // namespace gpumem::detail
