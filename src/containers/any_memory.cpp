// any_memory: tells whether a device can access the memory of a type-erased resource.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/services.hpp>
module gpumem:any_memory.impl;
import :any_memory;
import :services;

namespace gpumem::detail {

bool device_reaches(any_memory const& resource) {
  auto const traits = traits_by_property(resource);
  return traits.device_accessible || !traits.host_accessible;
}

} // namespace gpumem::detail
