// any_memory: tells whether a device can access the memory of a type-erased resource.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/services.hpp>
module gpumem:any_memory.impl;
import :any_memory;
import :cuda;
import :host_resource;

namespace gpumem::detail {

bool device_reaches(any_memory const& resource) noexcept {
  auto const told = mr::dynamic_accessibility_property{};
  return get_property(resource, told) != get_property(host_resource{}, told);
}

} // namespace gpumem::detail
