// PyTorch's memory on all devices: one gpumem pool per device.
// SPDX-License-Identifier: Apache-2.0
#include "torch_pools.hpp"

#include <cuda.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>

#include "failure.hpp"
#include "made_pools.hpp"
#include "options.hpp"
#include "stack.hpp"
#include "stack_text.hpp"
#include "torch_streams.hpp"

import gpumem;

namespace gpumem::c {
namespace {

/// Makes the device current for a default stream: the driver resolves its handle in the current context.
class device_of_stream {
public:
  device_of_stream(int device, void* stream) {
    if (is_default(stream)) current_.emplace(gpumem::device{device});
  }

private:
  std::optional<device_guard> current_;
};

std::string text_of_environment() {
  auto const* const text = std::getenv("GPUMEM_TORCH_OPTIONS");
  return text ? text : "";
}

/// Waits on the host for a stream's work.
void wait_for(int device, void* stream) {
  gpumem::device const pool_device{device};
  device_guard const scope{pool_device};
  driver_api::check(extend::identify(stream_ref{static_cast<CUstream>(stream)}, pool_device).identity().wait_on_host(),
                    "cuStreamSynchronize");
}

/// Waits on the host until the streams have completed all work, then frees. Used if the free cannot be ordered after
/// that work.
gpumem_outcome free_when_idle(gpumem_pool* pool, void* pointer, std::size_t bytes,
                              std::span<recorded_streams::stream const> streams) noexcept {
  auto const waited = outcome_of([&] {
    for (auto const& each : streams) wait_for(each.device, each.handle);
  });
  return waited == GPUMEM_GRANTED ? gpumem_free_sync(pool, pointer, bytes) : waited;
}

} // namespace

// Takes no host memory, since noexcept functions call it.
torch_pools& torch_pools::instance() noexcept {
  alignas(torch_pools) static std::byte place[sizeof(torch_pools)];
  static auto* const all = ::new (place) torch_pools;
  return *all;
}

void torch_pools::throw_unknown(int device) {
  throw std::invalid_argument{"gpumem: there is no device " + std::to_string(device)};
}

void torch_pools::configure(char const* options) {
  auto text = options ? std::string{options} : text_of_environment();
  check_stack(text); // throws now if the text is wrong
  support::scoped_lock const lock{mutex_};
  if (options_used_)
    throw std::invalid_argument{"gpumem: a device already has its pool: configure before the first use"};
  options_ = std::move(text);
}

void torch_pools::set_fraction(double fraction, int device) {
  auto const slot = slot_of(device);
  if (!(fraction >= 0 && fraction <= 1)) throw std::invalid_argument{"gpumem: the memory fraction must be from 0 to 1"};
  support::scoped_lock const lock{mutex_};
  auto const bytes = torch_device::limit_of(fraction, device);
  if (auto* const known = made(device)) return known->set_limit(bytes);
  limits_[slot] = bytes;
}

void torch_pools::share_pool(int device, gpumem_pool* pool) {
  auto const slot = slot_of(device);
  if (pool->device() != device) {
    throw std::invalid_argument{"gpumem: the pool is of device " + std::to_string(pool->device()) + ", not of device " +
                                std::to_string(device)};
  }
  support::scoped_lock const lock{mutex_};
  if (made(device)) {
    throw std::invalid_argument{"gpumem: device " + std::to_string(device) +
                                " already has its pool: share one before the first use"};
  }
  auto shared = std::make_unique<torch_device>(device, *pool);
  if (auto const limit = limits_[slot]) shared->set_limit(limit);
  gpumem_retain(pool);
  keep(slot, *shared.release());
}

void torch_pools::keep(std::size_t slot, torch_device& device) {
  devices_[slot].store(&device, std::memory_order_release);
  auto const count = static_cast<int>(slot) + 1;
  if (count > count_.load(std::memory_order_relaxed)) count_.store(count, std::memory_order_release);
}

torch_device& torch_pools::make(int device) {
  auto const slot = slot_of(device);
  support::scoped_lock const lock{mutex_};
  if (auto* const known = made(device)) return *known;
  pool_options options;
  options.name = "torch cuda:" + std::to_string(device);
  auto text = options_ ? *options_ : text_of_environment();
  bool const stack = layer_text::describes_stack(text);
  if (!stack) options = parse_options(text, options);
  auto const limit = options.limit;
  auto const most = limits_[slot];
  bool const limited_later = most && stack && has_changing_limit(text);
  if (most && !stack) options.limit = options.limit ? std::min(options.limit, most) : most;
  if (most && stack && !limited_later) text = "limiting(" + text + ",limit=" + std::to_string(most) + ")";
  auto pool = stack ? make_stack(device, text, options) : make_pages(device, std::move(options));
  auto made = std::make_unique<torch_device>(device, *pool, stack ? std::nullopt : std::optional{limit});
  if (limited_later) made->set_limit(most);
  made_pools::instance().add(*pool);
  pool.release();
  options_used_ = true;
  keep(slot, *made);
  return *made.release();
}

std::unique_ptr<gpumem_pool> torch_pools::make_pages(int device, pool_options options) {
  if (!draws_pages(device, options)) return make_plain_pool(device, std::move(options));
  return make_observed_pool(device, std::move(options), [this, device](void* address, std::size_t bytes, bool mapped) {
    if (auto const told = observer_.load(std::memory_order_acquire)) told(device, address, bytes, mapped);
  });
}

// Returns the device with a live block that starts at `pointer`; null if there is none. Reliable only if the caller
// owns the block: otherwise another thread can free the block meanwhile.
torch_device* torch_pools::owner_of(void const* pointer) {
  auto const count = count_.load(std::memory_order_acquire);
  for (int device = 0; device < count; ++device) {
    auto* const known = made(device);
    if (known && known->describe(pointer)) return known;
  }
  return nullptr;
}

void* torch_pools::allocate(std::size_t bytes, std::size_t room, int device, void* stream, int promises) {
  return bytes ? of(device).allocate(bytes, room, stream, promises) : nullptr;
}

// PyTorch frees in destructors, which cannot report a failure. So a failure is printed to stderr.
void torch_pools::free(void* pointer, std::size_t bytes, int device, void* stream) noexcept {
  if (!pointer || !driver_api::driver_alive()) return;
  auto* const pool = named(stream);
  auto outcome = GPUMEM_INVALID_ARGUMENT;
  auto const result = outcome_of([&] {
    auto* const existing_pool = made(device);
    if (!existing_pool) throw std::invalid_argument{"gpumem: the device has no pool"};
    device_of_stream const scope{device, pool};
    auto users = recorded_.take(pointer);
    if (shared_.any()) shared_.end(pointer);
    auto const owner =
        existing_pool->mem_pools().any() ? existing_pool->mem_pools().owner_of(pointer) : torch_mem_pools::memory{};
    auto& from = owner.pool ? *owner.pool : existing_pool->pool();
    std::erase(users, recorded_streams::stream{pool, device});
    if (record_uses(from, pointer, users)) outcome = gpumem_free_sized(&from, pool, pointer, bytes);
    if (outcome != GPUMEM_GRANTED) {
      users.push_back({pool, device});
      outcome = free_when_idle(&from, pointer, bytes, users);
    }
    if (outcome == GPUMEM_GRANTED) existing_pool->counters().count_free(bytes, bytes);
  });
  if (result == GPUMEM_GRANTED && outcome == GPUMEM_GRANTED) return;
  std::fprintf(stderr, "gpumem: PyTorch freed %p, %zu bytes, on device %d: %s\n", pointer, bytes, device,
               gpumem_last_error());
}

std::size_t torch_pools::free(void* pointer) {
  if (!pointer || !driver_api::driver_alive()) return 0;
  auto users = recorded_.take(pointer);
  if (shared_.any()) [[unlikely]]
    shared_.end(pointer);
  auto const count = count_.load(std::memory_order_acquire);
  for (int device = 0; device < count; ++device) {
    auto* const known = made(device);
    if (auto const bytes = known ? known->free(pointer, users) : std::nullopt) return *bytes;
  }
  throw std::invalid_argument{"gpumem: the pointer is no live block of a device's pool"};
}

gpumem_torch_block torch_pools::describe(void const* pointer) {
  auto* const owner = pointer ? owner_of(pointer) : nullptr;
  auto const found = owner ? owner->describe(pointer) : std::nullopt;
  return found ? *found : gpumem_torch_block{sizeof(gpumem_torch_block), -1, 0, {0, 0}, nullptr};
}

// Makes the reuse of the block wait for the work that the recorded streams have been given so far. Returns false if
// that failed for a stream.
bool torch_pools::record_uses(gpumem_pool& pool, void* pointer,
                              std::span<recorded_streams::stream const> users) noexcept {
  bool all = true;
  for (auto const& other : users) {
    auto const recorded = outcome_of([&] {
      device_of_stream const scope{other.device, other.handle};
      require(gpumem_record_use(&pool, pointer, other.handle));
    });
    all = all && recorded == GPUMEM_GRANTED;
  }
  return all;
}

void torch_pools::record_stream(void* pointer, void* stream, int device, int promises) {
  if (!pointer) return;
  auto const add = [&](void* block, int ordinal) {
    auto const where = device < 0 ? ordinal : device;
    try {
      keep_promises(stream, where, promises);
    } catch (std::exception const&) {} // the free then asks the driver
    recorded_.add(block, {named(stream), where});
  };
  if (auto* const owner = owner_of(pointer)) return add(pointer, owner->ordinal());
  auto const count = count_.load(std::memory_order_acquire);
  for (int at = 0; at < count; ++at) { // `pointer` can lie inside a block
    auto* const known = made(at);
    auto const found = known ? known->pool().find(pointer) : gpumem_pool::found_block{};
    if (found.live) return add(found.base, at);
  }
}

shared_blocks::name torch_pools::share(void const* pointer) {
  auto const count = count_.load(std::memory_order_acquire);
  for (int device = 0; device < count; ++device) {
    auto* const known = made(device);
    if (!known) continue;
    auto const block = known->find(pointer);
    if (!block.live) continue;
    auto name = shared_.share(known->pool(), block.base, block.bytes);
    name.offset += static_cast<std::size_t>(static_cast<char const*>(pointer) - static_cast<char const*>(block.base));
    return name;
  }
  throw std::invalid_argument{"gpumem: the pointer lies in no live block of a device's pool"};
}

void torch_pools::trim() noexcept {
  for (auto const& each : devices_) {
    auto* const known = each.load(std::memory_order_acquire);
    if (known) outcome_of([&] { known->trim(); });
  }
}

} // namespace gpumem::c
