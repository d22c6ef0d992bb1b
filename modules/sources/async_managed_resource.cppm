// async_managed_resource: managed memory from a driver pool of its own.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:async_managed_resource;
import :async_options;
import :cuda;
import :device;
import :driver_pool;
import :resource;
import :std;

namespace gpumem {

/// A driver pool of managed memory without a preferred location. The host may touch the memory as soon as an allocation
/// returns. So an allocation waits on the host until the memory is ready. The memory is ready immediately unless other
/// work still uses it. A free does not wait; it takes effect in the order of its stream. All other properties are those
/// of async_resource.
export class async_managed_resource
    : public detail::owned_driver_pool<async_managed_resource, mr::device_accessible, mr::host_accessible> {
public:
  /// The memory may be used on every stream immediately, without an order after the allocation.
  static constexpr bool stream_ordered = false;

  /// Throws std::invalid_argument for options that contradict each other, and out_of_memory. Throws cuda_error if the
  /// device or the driver does not support such pools.
  explicit async_managed_resource(gpumem::device where = gpumem::device{0}, async_options options = {})
      : owned_driver_pool{new detail::async_state{detail::driver_pool_kind::managed, where, std::move(options)}} {}
};

static_assert(mr::resource_with<async_managed_resource, mr::device_accessible, mr::host_accessible>);

} // namespace gpumem
