// async_resource: stream-ordered device memory from a driver pool of its own.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:async_resource;
import :async_options;
import :cuda;
import :device;
import :driver_pool;
import :resource;
import :std;

namespace gpumem {

/// Calls cuMemAllocFromPoolAsync and cuMemFreeAsync on a pool of its own. Both are stream-ordered and do not wait for
/// the device. An allocation or a free makes two or three driver calls, and some more on a default stream. For
/// alignments above 256 bytes more bytes are allocated than requested. The driver decides which freed memory it reuses;
/// the options can forbid some ways of reuse.
///
/// `allocate_sync` waits on the host until the memory is ready; `deallocate_sync` does not wait. An allocation on a
/// capturing stream fails, even if the capture was begun on the raw handle. A free on a capturing stream is deferred:
/// the next call outside a capture frees the block. If gpumem neither made nor adopted the stream, only a call on that
/// stream frees the block. Streams of other devices may be passed if the pool allows their device. A thread must wait
/// for its per-thread default stream before it ends: if that stream still uses memory of a driver pool, the thread
/// never ends (driver 580).
///
/// `trim(keep)` returns unused memory whose frees the host has seen complete. The statistics have reserved and
/// allocated bytes and the peak of reserved bytes from the driver. Live bytes, their peak, allocations, frees and
/// failures are counted by gpumem.
///
/// An object is a shared handle of 8 bytes: copies refer to the same pool and compare equal. The pool lives until its
/// last handle is gone and its last block is freed. The call that ends it waits on the host until all frees have run on
/// their streams, since driver 580 crashes if a pool is destroyed earlier. Any thread.
export class async_resource : public detail::owned_driver_pool<async_resource, mr::device_accessible> {
public:
  /// The memory may be used in the order of the stream on which it was allocated.
  static constexpr bool stream_ordered = true;

  /// Throws std::invalid_argument for options that contradict each other, and out_of_memory. Throws cuda_error, with
  /// CUDA_ERROR_NOT_SUPPORTED if the device does not support such pools.
  explicit async_resource(gpumem::device where = gpumem::device{0}, async_options options = {})
      : owned_driver_pool{new detail::async_state{detail::driver_pool_kind::device, where, std::move(options)}} {}

  /// Makes the pool the device's current one. In the whole process, cuMemAllocAsync and cudaMallocAsync then allocate
  /// from it, since they name no pool. The statistics' live bytes do not count such blocks; allocated and reserved
  /// bytes do.
  ///
  /// When the pool ends, the device's default pool becomes current again, unless another pool is current by then.
  /// reset_current_pool() does that earlier. Blocks of cuMemAllocAsync do not keep the pool alive. Free them, and let
  /// the host see these frees complete, before the resource's last handle and last block are gone. Throws cuda_error.
  void make_current() { shared().make_current(); }
};

/// Makes the device's default driver pool its current one again. Changes no pools or blocks. Throws cuda_error. Any
/// thread.
export void reset_current_pool(device where);

static_assert(mr::resource_with<async_resource, mr::device_accessible>);

} // namespace gpumem
