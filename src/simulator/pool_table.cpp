// pool_table: creates, finds and destroys memory pools.
// SPDX-License-Identifier: Apache-2.0
#include "pool_table.hpp"

#include <algorithm>
#include <iterator>
#include <limits>

#include "simulation.hpp"

namespace simulated {

namespace {

// This bit is set in the owner numbers of all pools, and in those of no other resource.
constexpr std::uint64_t pool_owners = std::uint64_t{1} << 63;

bool of_host(CUmemLocationType type) {
  return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
}

} // namespace

CUresult pool_table::judge(const CUmemPoolProps& properties, int devices) {
  const auto [type, id] = properties.location;
  const bool managed = properties.allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
  if (!managed && properties.allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (!place_of(properties.location, properties.allocType)) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_LOCATION_TYPE_DEVICE && (id < 0 || id >= devices)) return CUDA_ERROR_INVALID_DEVICE;
  if (type == CU_MEM_LOCATION_TYPE_HOST_NUMA && id != 0) return CUDA_ERROR_INVALID_VALUE; // the host has one node
  if ((properties.usage & ~unsigned{CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS}) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (properties.win32SecurityAttributes != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (std::any_of(std::begin(properties.reserved), std::end(properties.reserved),
                  [](unsigned char c) { return c != 0; }))
    return CUDA_ERROR_INVALID_VALUE;
  if (properties.handleTypes == CU_MEM_HANDLE_TYPE_NONE) return CUDA_SUCCESS;
  if (managed || of_host(type)) return CUDA_ERROR_INVALID_VALUE;
  return properties.handleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

memory_pool& pool_table::create(simulation& all, const CUmemPoolProps& properties) {
  const bool on_device = properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
  context& home = *all.primaries[static_cast<std::size_t>(on_device ? properties.location.id : 0)];
  auto made = std::make_shared<memory_pool>(properties, home, pool_owners | ++made_);
  made->handle = static_cast<CUmemoryPool>(handles_.insert(made));
  pools_.push_back(made);
  return *made;
}

void pool_table::destroy(simulation& all, memory_pool& which) {
  std::erase_if(current_, [&](const auto& entry) { return entry.second == &which; });
  which.destroyed = true;
  handles_.erase(which.handle);
  collect(all);
}

memory_pool* pool_table::find(CUmemoryPool handle) const {
  const auto* found = handles_.find(handle);
  return found == nullptr ? nullptr : found->get();
}

memory_pool* pool_table::holding(std::uint64_t address) const {
  for (const auto& each : pools_)
    if (each->holds(address)) return each.get();
  return nullptr;
}

std::optional<pool_table::place> pool_table::place_of(const CUmemLocation& location, CUmemAllocationType type) {
  const bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
  switch (location.type) {
  case CU_MEM_LOCATION_TYPE_DEVICE:
  case CU_MEM_LOCATION_TYPE_HOST_NUMA: return place{type, location.type, location.id};
  case CU_MEM_LOCATION_TYPE_HOST: return place{type, location.type, 0};
  case CU_MEM_LOCATION_TYPE_NONE: return managed ? std::optional{place{type, location.type, 0}} : std::nullopt;
  default: return std::nullopt;
  }
}

memory_pool* pool_table::default_of(simulation& all, const CUmemLocation& location, CUmemAllocationType type) {
  CUmemPoolProps properties{};
  properties.allocType = type;
  properties.location = location;
  if (judge(properties, all.options().devices) != CUDA_SUCCESS) return nullptr;
  auto& known = defaults_[*place_of(location, type)];
  if (known == nullptr) known = &create(all, properties);
  return known;
}

memory_pool* pool_table::current_of(simulation& all, const CUmemLocation& location, CUmemAllocationType type) {
  const auto where = place_of(location, type);
  const auto found = where ? current_.find(*where) : current_.end();
  return found == current_.end() ? default_of(all, location, type) : found->second;
}

bool pool_table::set_current(const CUmemLocation& location, CUmemAllocationType type, memory_pool* which) {
  const auto where = place_of(location, type);
  if (!where) return false;
  if (which == nullptr) {
    current_.erase(*where);
    return true;
  }
  if (place_of(which->properties.location, which->properties.allocType) != where) return false;
  current_[*where] = which;
  return true;
}

bool pool_table::is_default(const memory_pool& which) const {
  return std::any_of(defaults_.begin(), defaults_.end(), [&](const auto& entry) { return entry.second == &which; });
}

void pool_table::after_wait(simulation& all, const std::function<bool(const position&)>& covered) {
  collect(all);
  for (const auto& each : pools_) {
    std::erase_if(each->unawaited, covered);
    each->release(all, each->threshold, 0, true);
  }
}

void pool_table::collect(simulation& all) {
  std::erase_if(pools_, [&](const auto& each) {
    if (!each->destroyed) return false;
    each->release(all, 0, 0, false);
    return each->empty();
  });
}

void pool_table::clear() {
  handles_.clear();
  pools_.clear();
  defaults_.clear();
  current_.clear();
  made_ = 0;
}

void pool_table::drop(const context& home) {
  const auto dies = [&](const auto& entry) { return &entry.second->home == &home; };
  std::erase_if(defaults_, dies);
  std::erase_if(current_, dies);
  std::erase_if(pools_, [&](const auto& each) {
    if (&each->home != &home) return false;
    if (!each->destroyed) handles_.erase(each->handle);
    return true;
  });
}

} // namespace simulated
