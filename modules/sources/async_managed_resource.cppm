// Managed memory of an own pool of the driver.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:async_managed_resource;
import :async_options;
import :cuda;
import :device;
import :driver_pool;
import :resource;
import :std;

namespace gpumem {

/// A driver pool of managed memory without a preferred place. The host may touch the memory as soon as it is given, so
/// an allocation waits on the host until the memory is there, which it is unless the driver had to reuse what other
/// work still uses; a free waits for nothing and is in the order of its stream. All else as async_resource.
export class async_managed_resource
    : public detail::owned_driver_pool<async_managed_resource, mr::device_accessible, mr::host_accessible> {
public:
  /// Memory is there for every stream.
  static constexpr bool stream_ordered = false;

  /// Throws std::invalid_argument for options that contradict each other, out_of_memory, cuda_error where the device or
  /// the driver has no such pools.
  explicit async_managed_resource(gpumem::device where = gpumem::device{0}, async_options options = {})
      : owned_driver_pool{new detail::async_state{detail::driver_pool_kind::managed, where, std::move(options)}} {}
};

static_assert(mr::resource_with<async_managed_resource, mr::device_accessible, mr::host_accessible>);

} // namespace gpumem
