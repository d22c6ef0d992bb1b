// Allocations from a driver pool, frees to it, and the end of a pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <gpumem/statistics.hpp>
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <map>
#include <new>
#include <optional>
#include <tuple>
#include <utility>
module gpumem:driver_pool.impl;
import :driver_pool;
import :async_options;
import :cuda;
import :device;
import :device_source;
import :driver;
import :error;
import :shared_state;
import :misuse;
import :source_state;
import :stream;
import :sync;
import :stream_timeline;

namespace gpumem::detail {
namespace {

inline constexpr std::size_t driver_alignment = 256;

// Returns the stream for allocations that the host waits for. One per device, never destroyed.
stream& ready_stream(device where) {
  static auto* const mutex = new sync::mutex;
  static auto* const streams = new std::map<int, stream>;
  sync::lock const held{*mutex};
  return streams->try_emplace(where.ordinal(), where).first->second;
}

// Destroys the pool with its device current, as for every other change of a pool.
void destroy(CUmemoryPool pool, device where) noexcept {
  call_on(where, [pool] { return driver().mem_pool_destroy(pool); });
}

} // namespace

driver_pool_state::driver_pool_state(char const* name, driver_pool const& pool)
    : source_state{name, driver_alignment}, pool_{pool}, ready_{ready_stream(pool.where)} {}

expected<void*, failure> driver_pool_state::allocate_memory(stream_key const& key, std::size_t bytes,
                                                            std::size_t) noexcept {
  if (pool_.limit != 0 && bytes > pool_.limit) return unexpected<failure>{failure{outcome::too_large, 0, bytes}};
  auto const on = usable_handle(key);
  if (pool_.host_ready || !on) return allocate_ready(bytes);
  CUdeviceptr address{};
  auto const result =
      call_on_stream(key, *on, [&] { return driver().mem_alloc_from_pool_async(&address, bytes, pool_.handle, *on); });
  if (result != CUDA_SUCCESS) return unexpected<failure>{refused(result, bytes)};
  return reinterpret_cast<void*>(address);
}

expected<void*, failure> driver_pool_state::allocate_ready(std::size_t bytes) noexcept {
  CUdeviceptr address{};
  auto result = call_on(
      pool_.where, [&] { return driver().mem_alloc_from_pool_async(&address, bytes, pool_.handle, ready_.get()); });
  if (result != CUDA_SUCCESS) return unexpected<failure>{refused(result, bytes)};
  result = call_on(pool_.where, [&] { return driver().stream_synchronize(ready_.get()); });
  if (result == CUDA_SUCCESS) return reinterpret_cast<void*>(address);
  driver().mem_free_async(address, ready_.get());
  ready_pending_.store(true, std::memory_order_relaxed);
  return unexpected<failure>{refused(result, bytes)};
}

CUresult driver_pool_state::wait_for_allocations() noexcept {
  if (!ready_pending_.load(std::memory_order_relaxed)) return CUDA_SUCCESS;
  return call_on(pool_.where, [&] { return driver().stream_synchronize(ready_.get()); });
}

failure driver_pool_state::refused(CUresult error, std::size_t bytes) noexcept {
  return refusal_of(pool_.where.interpret(error), bytes);
}

bool driver_pool_state::free_in_order(stream_key const& key, block const& returned) noexcept {
  if (pool_.where.lost()) return true;
  if (key.is_host()) return free_memory(returned);
  auto const on = usable_handle(key);
  if (!on) return false;
  auto const result = call_on_stream(
      key, *on, [&] { return driver().mem_free_async(reinterpret_cast<CUdeviceptr>(returned.base), *on); });
  return !capture_forbids(pool_.where.interpret(result));
}

// For memory of a pool, cuMemFree relies on the caller that all use is over.
bool driver_pool_state::free_memory(block const& returned) noexcept {
  if (pool_.where.lost()) return true;
  auto const result =
      call_on(pool_.where, [&] { return driver().mem_free(reinterpret_cast<CUdeviceptr>(returned.base)); });
  return !capture_forbids(pool_.where.interpret(result));
}

bool driver_pool_state::may_free_inside(stream_key const& freed_on, stream_key const& now) const noexcept {
  return freed_on.timeline().kind() != stream_kind::foreign || freed_on == now;
}

void driver_pool_state::mark_lost(stream_key const&, CUresult error) noexcept { pool_.where.mark_lost(error); }

void driver_pool_state::reserve(std::size_t bytes) {
  auto const allocated = allocate_ready(bytes);
  if (!allocated) throw_failure(allocated.error());
  // Waits for the free: until it has run, the driver counts the memory as used.
  check(call_on(pool_.where,
                [&] {
                  auto const freed = driver().mem_free_async(reinterpret_cast<CUdeviceptr>(*allocated), ready_.get());
                  return freed == CUDA_SUCCESS ? driver().stream_synchronize(ready_.get()) : freed;
                }),
        "cuMemFreeAsync");
}

driver_pool_view_state& driver_pool_view_state::of(driver_pool const& pool) {
  pool.where.require();
  static auto* const mutex = new sync::mutex;
  static auto* const states = new std::map<std::tuple<CUmemoryPool, int, bool>, driver_pool_view_state>;
  sync::lock const held{*mutex};
  return states->try_emplace({pool.handle, pool.where.ordinal(), pool.host_ready}, pool).first->second;
}

async_state::owned_pool::~owned_pool() {
  if (kept) return;
  call_on(pool.where,
          [&] { return driver().stream_synchronize(ready_stream(pool.where).get()); }); // an allocation that failed
  destroy(pool.handle, pool.where);
}

async_state::async_state(driver_pool_kind kind, class device where, async_options options)
    : async_state{kind, owned_pool{make_driver_pool(kind, where, options)}, std::move(options)} {}

async_state::async_state(driver_pool_kind kind, owned_pool made, async_options options)
    : driver_pool_state{name_of(kind), made.pool}, options_{std::move(options)} {
  if (options_.initial_size != 0) reserve(options_.initial_size);
  made.kept = true;
}

// If the host cannot wait for the frees, the pool is never destroyed, only trimmed to the memory still in use.
async_state::~async_state() {
  if (!driver_alive() || where().lost()) return;
  end_being_current();
  if (wait_for_frees()) {
    destroy(handle(), where());
  } else if (!where().lost()) {
    call_on(where(), [this] { return driver().mem_pool_trim_to(handle(), 0); });
  }
}

void async_state::make_current() {
  where().require();
  was_current_.store(true, std::memory_order_relaxed);
  set_current_driver_pool({handle(), where()});
}

// The driver does so only when it destroys the pool, which does not happen if its frees cannot be awaited.
void async_state::end_being_current() noexcept try {
  if (was_current_.load(std::memory_order_relaxed) && current_driver_pool(where()).handle == handle()) {
    set_current_driver_pool(default_driver_pool(where()));
  }
} catch (cuda_error const&) { // the pool then stays current until the driver destroys it
}

// Keeps the newest free of each stream for the destructor's wait. Reuses the block's node, so it allocates nothing.
void async_state::freed_in_order(stream_key const& key, block_map::node_type given) noexcept {
  if (key.is_host()) return;
  given.key() = &key.timeline();
  given.mapped().freed_on = key.by_identity();
  given.mapped().freed_at = key.end_use(given.mapped().allocated, true); // always records: the destructor waits for it
  sync::lock const held{frees_mutex_};
  frees_.erase(given.key());
  frees_.insert(std::move(given));
}

bool async_state::wait_for_frees() noexcept {
  relaxed_capture const mode;
  if (wait_for_allocations() != CUDA_SUCCESS) return false;
  sync::lock const held{frees_mutex_};
  for (auto const& [stream, newest] : frees_) {
    auto const& key = newest.freed_on;
    auto& timeline = key.timeline();
    if (timeline.completed(newest.freed_at) || (timeline.is_mortal() && timeline.wait(newest.freed_at))) continue;
    if (where().interpret(key.wait_on_host()) != CUDA_SUCCESS) return false;
  }
  return true;
}

expected<void*, failure> async_state::try_allocate(stream_key const& key, std::size_t bytes,
                                                   std::size_t alignment) noexcept {
  if (closed()) {
    report_misuse({misuse::kind::use_after_close, nullptr, bytes, 0, key.id(), "async_resource"});
    return unexpected<failure>{failure{outcome::closed, 0, bytes}};
  }
  auto result = driver_pool_state::try_allocate(key, bytes, alignment);
  if (result) add_live();
  return result;
}

void async_state::deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept {
  if (source_state::deallocate(key, pointer, bytes, alignment)) drop_live();
}

} // namespace gpumem::detail
