// reset_current_pool(): makes the default pool of a device the current one again.
// SPDX-License-Identifier: Apache-2.0
module gpumem:async_resource.impl;
import :async_resource;
import :device;
import :driver_pool;

namespace gpumem {

void reset_current_pool(device device) {
  device.require();
  detail::set_current_driver_pool(detail::default_driver_pool(device));
}

} // namespace gpumem
