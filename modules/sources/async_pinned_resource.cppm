// async_pinned_resource: page-locked host memory from a driver pool of its own.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:async_pinned_resource;
import :async_options;
import :cuda;
import :device;
import :driver_pool;
import :resource;
import :std;

namespace gpumem {

/// A driver pool of page-locked host memory, on the NUMA node `options.numa_node` unless that is -1. The device and
/// `options.peers` can access the memory, and the host may touch it as soon as an allocation returns. So an allocation
/// waits on the host until its memory is ready; a free does not wait.
///
/// A copy by the CUDA runtime fails on this memory if the call names the direction of the copy (driver 580). Thrust's
/// algorithms fail too, since they make such calls. Copies by cudaMemcpyDefault and copies by the driver API work. All
/// other properties are those of async_resource.
export class async_pinned_resource
    : public detail::owned_driver_pool<async_pinned_resource, mr::device_accessible, mr::host_accessible> {
public:
  /// The memory may be used on every stream immediately, without an order after the allocation.
  static constexpr bool stream_ordered = false;

  /// Throws std::invalid_argument for options that contradict each other, and out_of_memory. Throws cuda_error if the
  /// device or the driver does not support such pools.
  explicit async_pinned_resource(gpumem::device where = gpumem::device{0}, async_options options = {})
      : owned_driver_pool{new detail::async_state{detail::driver_pool_kind::pinned, where, std::move(options)}} {}
};

static_assert(mr::resource_with<async_pinned_resource, mr::device_accessible, mr::host_accessible>);

} // namespace gpumem
