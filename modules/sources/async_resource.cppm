// Device memory of an own pool of the driver, in stream order.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:async_resource;
import :async_options;
import :cuda;
import :device;
import :driver_pool;
import :resource;
import :std;

namespace gpumem {

/// cuMemAllocFromPoolAsync and cuMemFreeAsync over a pool of its own: stream-ordered, no call waits for the device, and
/// each makes two or three calls of the driver, some more on a default stream. Alignments above 256 over-allocate. The
/// driver decides which freed memory it reuses, within the policies of the options.
///
/// `allocate_sync` waits on the host until the memory is there; `deallocate_sync` waits for nothing. A capturing stream
/// is refused, also where the capture was begun on the raw handle; a free on one is kept until the next call outside a
/// capture, for a foreign stream until the next call that is given it. The last handle waits on the host for the
/// streams that freed. Streams of other devices may be given where the pool allows their device. A thread waits for its
/// per-thread default stream before it ends: where that stream still works on memory of a driver pool, driver 580 never
/// lets the thread end, whoever made the calls.
///
/// `trim(keep)` gives back what is not in use and whose frees the host has seen complete. Statistics: reserved and
/// granted bytes with the peak of reserved from the driver, live bytes with their peak, allocations, frees, failures.
///
/// A shared handle of 8 bytes: copies are the same pool and compare equal. The pool lives until its last handle is gone
/// and its last block is freed; whoever ends it then waits on the host for the streams on which its memory was freed,
/// unless they were seen done: drivers crash of a pool that is destroyed before (580 does). Any thread.
export class async_resource : public detail::owned_driver_pool<async_resource, mr::device_accessible> {
public:
  /// The memory is valid in the order of the stream it was given to.
  static constexpr bool stream_ordered = true;

  /// Throws std::invalid_argument for options that contradict each other, out_of_memory, cuda_error with
  /// CUDA_ERROR_NOT_SUPPORTED where the device has no such pools.
  explicit async_resource(gpumem::device where = gpumem::device{0}, async_options options = {})
      : owned_driver_pool{new detail::async_state{detail::driver_pool_kind::device, where, std::move(options)}} {}
};

static_assert(mr::resource_with<async_resource, mr::device_accessible>);

} // namespace gpumem
