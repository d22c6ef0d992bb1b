// Page-locked host memory of an own pool of the driver.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:async_pinned_resource;
import :async_options;
import :cuda;
import :device;
import :driver_pool;
import :resource;
import :std;

namespace gpumem {

/// A driver pool of page-locked host memory, on the host node of `options.numa_node` if one is named, that the device
/// and the peers of the options reach. The host may touch the memory as soon as it is given: allocations and frees as
/// async_managed_resource's. Copies of the runtime that name their direction refuse such memory (driver 580), and with
/// them Thrust's algorithms; those by cudaMemcpyDefault and by the driver do not. All else as async_resource.
export class async_pinned_resource
    : public detail::owned_driver_pool<async_pinned_resource, mr::device_accessible, mr::host_accessible> {
public:
  /// Memory is there for every stream.
  static constexpr bool stream_ordered = false;

  /// Throws std::invalid_argument for options that contradict each other, out_of_memory, cuda_error where the device or
  /// the driver has no such pools.
  explicit async_pinned_resource(gpumem::device where = gpumem::device{0}, async_options options = {})
      : owned_driver_pool{new detail::async_state{detail::driver_pool_kind::pinned, where, std::move(options)}} {}
};

static_assert(mr::resource_with<async_pinned_resource, mr::device_accessible, mr::host_accessible>);

} // namespace gpumem
