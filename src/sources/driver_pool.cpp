// Allocates from and frees to a driver pool, and ends a pool.
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
#include <vector>
module gpumem:driver_pool.impl;
import :driver_pool;
import :async_options;
import :cuda;
import :device;
import :device_source;
import :driver;
import :error;
import :misuse;
import :process;
import :shared_state;
import :source_state;
import :stream;
import :stream_timeline;
import :sync;

namespace gpumem::detail {
namespace {

inline constexpr std::size_t driver_alignment = 256;

// Returns the device's stream for allocations that must be ready when the call returns: the host waits for this stream,
// so any stream can use the memory. The stream is never destroyed.
stream& ready_stream(device where) {
  static auto* const mutex = new sync::mutex;
  static auto* const streams = new std::map<int, stream>;
  sync::lock const held{*mutex};
  return streams->try_emplace(where.ordinal(), where).first->second;
}

// Destroys the pool. Makes its device current for that, as all functions that change a pool do.
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

// On memory of a pool, cuMemFree does not wait: the caller must know that all use is over.
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
  // Waits for the free, since the driver counts the memory as used until the free has run.
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
  // The free that a failed allocation has enqueued on this stream must run before the destruction.
  call_on(pool.where, [&] { return driver().stream_synchronize(ready.get()); });
  destroy(pool.handle, pool.where);
}

async_state::async_state(driver_pool_kind kind, class device where, async_options options)
    : async_state{kind, owned_pool{ready_stream(where), make_driver_pool(kind, where, options)}, std::move(options)} {}

async_state::async_state(driver_pool_kind kind, owned_pool made, async_options options)
    : driver_pool_state{name_of(kind), made.pool}, options_{std::move(options)} {
  if (options_.initial_size != 0) reserve(options_.initial_size);
  made.kept = true;
}

// If the host cannot wait for all frees, the pool is never destroyed, but trimmed to the memory that is still in use.
async_state::~async_state() {
  if (driver_alive() && !where().lost()) {
    end_being_current();
    if (wait_for_frees()) {
      destroy(handle(), where());
    } else if (!where().lost()) {
      call_on(where(), [this] { return driver().mem_pool_trim_to(handle(), 0); });
    }
  }
  if (!forked()) return_events();
}

void async_state::make_current() {
  where().require();
  was_current_.store(true, std::memory_order_relaxed);
  set_current_driver_pool({handle(), where()});
}

// If this pool is current, the driver makes the default pool current when it destroys this pool. The destructor cannot
// always destroy the pool, so this function makes the default pool current first.
void async_state::end_being_current() noexcept try {
  if (was_current_.load(std::memory_order_relaxed) && current_driver_pool(where()).handle == handle()) {
    set_current_driver_pool(default_driver_pool(where()));
  }
} catch (cuda_error const&) { // the pool then stays current until the driver destroys it
}

// Notes a free on the stream, so that the destructor can wait for it. Allocates host memory only at the first free on a
// stream. If the host has no memory, or no event can be recorded, the pool is never destroyed.
void async_state::freed_in_order(stream_key const& key) noexcept try {
  auto const on = usable_handle(key); // the stream that free_in_order() has used
  if (!on || where().lost()) return;
  auto& timeline = key.timeline();
  bool const legacy = *on == CU_STREAM_LEGACY;
  sync::lock const held{frees_mutex_};
  auto& freed = frees_[legacy ? static_cast<void const*>(timeline.context()) : &timeline];
  if (timeline.kind() == stream_kind::own) {
    freed.own = &timeline;
  } else {
    record_free(freed, key, *on);
  }
} catch (...) { free_without_event_.store(true, std::memory_order_relaxed); }

// Records an event after the free. Since the last free, the timeline may have passed to another stream. The old
// stream's event must not be recorded on the new stream before the host has synchronized with the event. A free must
// not wait, so an old event that is not complete is kept in `dead_`, and a new one is recorded.
void async_state::record_free(freed_stream& freed, stream_key const& key, CUstream on) {
  auto const context = key.timeline().context();
  auto const id = on == CU_STREAM_LEGACY ? 0 : key.id();
  if (freed.event && freed.id != id) {
    dead_.push_back(std::exchange(freed.event, nullptr));
    relaxed_capture const mode;
    std::erase_if(dead_, [](pooled_event* event) {
      bool const done = driver().event_query(event->handle) == CUDA_SUCCESS &&
                        driver().event_synchronize(event->handle) == CUDA_SUCCESS;
      if (done) give_event(event);
      return done;
    });
  }
  context_guard const here{is_default_handle(on) ? context : nullptr};
  check(here.result(), "cuCtxPushCurrent");
  bool const first = !freed.event;
  if (first) freed.event = take_event(context);
  freed.id = id;
  auto const result = where().interpret(driver().event_record(freed.event->handle, on));
  bool const keeps = result == CUDA_SUCCESS || !first; // otherwise the event has the record of an earlier owner
  if (!keeps) give_event(std::exchange(freed.event, nullptr));
  check(result, "cuEventRecord");
  // If another thread has begun a capture on the stream meanwhile, the event may belong to its graph, and then does not
  // show when the free has run.
  if (!is_capturing(on)) return;
  free_without_event_.store(true, std::memory_order_relaxed);
  give_event(std::exchange(freed.event, nullptr));
}

bool async_state::wait_for_frees() noexcept {
  relaxed_capture const mode;
  if (free_without_event_.load(std::memory_order_relaxed) || wait_for_allocations() != CUDA_SUCCESS) return false;
  auto const synchronize = [this](pooled_event const* event) {
    return where().interpret(call_on(where(), [&] { return driver().event_synchronize(event->handle); }));
  };
  sync::lock const held{frees_mutex_};
  for (auto const& [stream, freed] : frees_) {
    auto const waited =
        freed.own ? stream_key::of(*freed.own, freed.own->handle()).wait_on_host() : synchronize(freed.event);
    if (waited != CUDA_SUCCESS) return false;
  }
  return std::ranges::all_of(dead_, [&](pooled_event const* event) { return synchronize(event) == CUDA_SUCCESS; });
}

void async_state::return_events() noexcept {
  sync::lock const held{frees_mutex_};
  for (auto const& [stream, freed] : frees_)
    if (freed.event) give_event(freed.event);
  for (auto* const event : dead_) give_event(event);
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
