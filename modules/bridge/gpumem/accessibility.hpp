// Asks a resource of any library at run time whether it is empty, and, from CCCL 3.4 on, which processors can access
// its memory.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda/memory_resource>
#include <cuda/std/version>

#include <stdexcept>

namespace gpumem {
namespace detail {

// Returns false for a type-erased resource that is empty.
template <class Resource> auto holds_value(Resource const& resource, int) noexcept -> decltype(resource.has_value()) {
  return resource.has_value();
}
template <class Resource> bool holds_value(Resource const&, long) noexcept { return true; }
// Throws std::invalid_argument for such a resource: the calls of CCCL's type to it would end the program.
template <class Resource> void require_value(Resource const& resource) {
  if (!holds_value(resource, 0)) throw std::invalid_argument("gpumem: the resource is empty; was it moved from?");
}

} // namespace detail
} // namespace gpumem

// CCCL has no public names for the values of its property.
#if CCCL_VERSION >= 3004000

namespace gpumem {
namespace detail {

struct device_memory {
  friend constexpr void get_property(device_memory const&, cuda::mr::device_accessible) noexcept {}
};
struct host_memory {
  friend constexpr void get_property(host_memory const&, cuda::mr::host_accessible) noexcept {}
};
struct managed_memory {
  friend constexpr void get_property(managed_memory const&, cuda::mr::device_accessible) noexcept {}
  friend constexpr void get_property(managed_memory const&, cuda::mr::host_accessible) noexcept {}
};
struct unknown_memory {};

using accessibility = cuda::mr::dynamic_accessibility_property::value_type;

constexpr accessibility accessibility_of(bool device, bool host) noexcept {
  constexpr cuda::mr::dynamic_accessibility_property told{};
  if (device && host) return get_property(managed_memory{}, told);
  if (device) return get_property(device_memory{}, told);
  return host ? get_property(host_memory{}, told) : get_property(unknown_memory{}, told);
}

// Return what a resource of any library tells of its memory. A type-erased resource answers for the value that it
// holds; an empty one for no memory.
template <class Resource> bool is_told(Resource const& resource, accessibility kind, accessibility other) noexcept {
  if (!holds_value(resource, 0)) return false;
  auto const told = get_property(resource, cuda::mr::dynamic_accessibility_property{});
  return told == kind || told == other;
}
template <class Resource> bool host_can_access(Resource const& resource) noexcept {
  return is_told(resource, accessibility_of(false, true), accessibility_of(true, true));
}
template <class Resource> bool devices_can_access(Resource const& resource) noexcept {
  return is_told(resource, accessibility_of(true, false), accessibility_of(true, true));
}

} // namespace detail
} // namespace gpumem

#endif
