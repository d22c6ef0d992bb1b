// The current resource of each device, guarded by a lock per device.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <gpumem/services.hpp>
#include <array>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
module gpumem:current_resource.impl;
import :current_resource;
import :cuda;
import :cuda_resource;
import :device;
import :driver;
import :pool_resource;
import :process;
import :services;
import :sync;

namespace gpumem {
namespace {

inline constexpr int max_devices = 64; // the most devices that class `device` supports

// A device's current resource and its lock. Never destroyed, because containers with static storage may free into their
// resources at exit.
struct device_slot {
  sync::mutex mutex;
  std::optional<any_pool> current GPUMEM_GUARDED_BY(mutex); // if empty: `first`, the initial pool
  std::optional<any_pool> first GPUMEM_GUARDED_BY(mutex);
};

device_slot& slot_of(device device) {
  static auto* const slots = new std::array<device_slot, max_devices>;
  return (*slots)[static_cast<std::size_t>(device.ordinal())];
}

// Returns the device's initial pool, which the first call makes. The pool is made without the lock, since its
// constructor calls the driver. If two threads make a pool at the same time, the pool of the first to finish is kept.
any_pool first_resource(device device) {
  auto& slot = slot_of(device);
  {
    sync::lock const lock{slot.mutex};
    if (slot.first) return *slot.first;
  }
  any_pool made{pool_resource<cuda_resource>{device, {.name = "current"}}};
  sync::lock const lock{slot.mutex};
  if (!slot.first) slot.first.emplace(std::move(made));
  return *slot.first;
}

void require_memory_of(device device, any_pool& resource) {
  if (!resource.has_value()) throw std::invalid_argument{"gpumem: an empty (moved-from) resource cannot be current"};
  auto const found = detail::device_of(services_of(resource));
  if (found && *found != device) {
    throw std::invalid_argument{"gpumem: memory of device " + std::to_string(found->ordinal()) +
                                " cannot be current on device " + std::to_string(device.ordinal())};
  }
}

// Sets the current resource (none: the initial pool) and returns the previous one. The caller destroys the previous
// one, so that its destructor does not run under the lock.
any_pool exchange_current(device device, std::optional<any_pool> next) {
  detail::throw_if_child();
  auto first = first_resource(device);
  auto& slot = slot_of(device);
  sync::lock const lock{slot.mutex};
  std::optional<any_pool> before;
  if (slot.current) before.emplace(std::move(*slot.current));
  slot.current.reset();
  if (next) slot.current.emplace(std::move(*next));
  return before ? std::move(*before) : std::move(first);
}

} // namespace

any_pool current_resource(device device) {
  detail::throw_if_child();
  auto& slot = slot_of(device);
  {
    sync::lock const lock{slot.mutex};
    if (slot.current) return *slot.current;
  }
  return first_resource(device);
}

any_pool set_current_resource(device device, any_pool resource) {
  require_memory_of(device, resource);
  return exchange_current(device, std::move(resource));
}

any_pool set_current_resource(any_pool resource) {
  return set_current_resource(device::current(), std::move(resource));
}

any_pool reset_current_resource(device device) { return exchange_current(device, std::nullopt); }

scoped_current_resource::scoped_current_resource(device device, any_pool resource)
    : device_{device}, previous_{set_current_resource(device, std::move(resource))} {}

scoped_current_resource::scoped_current_resource(any_pool resource)
    : scoped_current_resource{device::current(), std::move(resource)} {}

scoped_current_resource::~scoped_current_resource() {
  if (!detail::forked()) set_current_resource(device_, std::move(previous_));
}

} // namespace gpumem
