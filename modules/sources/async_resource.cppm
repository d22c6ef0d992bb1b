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
/// the device. Each makes two or three driver calls, and some more on a default stream. Alignments above 256 bytes
/// over-allocate. The driver decides which freed memory it reuses, as far as the options allow.
///
/// `allocate_sync` waits on the host until the memory is ready; `deallocate_sync` does not wait. An allocation on a
/// capturing stream fails, even if the capture was begun on the raw handle. A free on a capturing stream is deferred to
/// the next call outside a capture; for a foreign stream, to the next such call on that stream. Streams of other
/// devices may be passed if the pool allows their device. A thread must wait for its per-thread default stream before
/// it ends. If that stream still uses memory of any driver pool, the thread never ends (driver 580).
///
/// `trim(keep)` returns unused memory whose frees the host has seen complete. Statistics: reserved and allocated bytes
/// and the peak of reserved (from the driver), live bytes and their peak, allocations, frees, failures.
///
/// A shared handle of 8 bytes: copies refer to the same pool and compare equal. The pool lives until its last handle is
/// gone and its last block is freed. The call that ends it waits on the host for the streams on which its memory was
/// freed, unless their frees are known to be complete. Driver 580 crashes if a pool is destroyed earlier. Any thread.
export class async_resource : public detail::owned_driver_pool<async_resource, mr::device_accessible> {
public:
  /// The memory may be used in the order of the stream on which it was allocated.
  static constexpr bool stream_ordered = true;

  /// Throws std::invalid_argument for options that contradict each other, out_of_memory, and cuda_error
  /// (CUDA_ERROR_NOT_SUPPORTED if the device does not support such pools).
  explicit async_resource(gpumem::device where = gpumem::device{0}, async_options options = {})
      : owned_driver_pool{new detail::async_state{detail::driver_pool_kind::device, where, std::move(options)}} {}

  /// Makes the pool the device's current one: cuMemAllocAsync and cudaMallocAsync, which name no pool, then draw from
  /// it, in the whole process. The statistics' live bytes do not count such blocks; allocated and reserved bytes do.
  ///
  /// When the pool ends, the device's default pool becomes current again, unless another one is current by then;
  /// reset_current_pool() makes it current earlier. Blocks of cuMemAllocAsync do not keep the pool: free them, and
  /// let the host see those frees complete, before the last handle and the last block are gone. Throws cuda_error.
  void make_current() { shared().make_current(); }
};

/// Makes the device's default driver pool its current one again. Pools and blocks stay as they are. Throws cuda_error.
/// Any thread.
export void reset_current_pool(device where);

static_assert(mr::resource_with<async_resource, mr::device_accessible>);

} // namespace gpumem
