// Resources over driver pools: for device, managed and pinned memory, with a pool of their own or that of another
// owner.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:async_resource;
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
  explicit async_resource(gpumem::device device = gpumem::device{0}, async_options options = {})
      : owned_driver_pool{new detail::async_state{detail::driver_pool_kind::device, device, std::move(options)}} {}

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
export void reset_current_pool(device device);

static_assert(mr::resource_with<async_resource, mr::device_accessible>);

/// Allocates as async_resource does, but from a pool that gpumem does not own: a device's default pool, or any pool of
/// device memory by its handle. A view changes the settings of the pool only on request: so the release threshold of
/// the default pool stays at the driver's 0 unless the program has raised it. The pool must outlive the view's blocks,
/// and may be destroyed only after the host has seen their frees complete. A block must be freed through a view of the
/// same pool; an async_resource that owns this pool is a different resource.
///
/// A value type: all views of the same pool are equal. Any thread.
export class async_resource_view
    : public detail::driver_pool_base<async_resource_view, detail::driver_pool_view_state, mr::device_accessible> {
public:
  /// The memory may be used in the order of the stream on which it was allocated.
  static constexpr bool stream_ordered = true;

  /// Uses the device's default pool. Throws std::invalid_argument and cuda_error.
  explicit async_resource_view(gpumem::device device = gpumem::device{0})
      : async_resource_view{detail::default_driver_pool(device)} {}

  /// Uses the pool whose handle is `pool`; its memory must lie on `device`. Throws std::invalid_argument for
  /// a null handle, and cuda_error.
  async_resource_view(CUmemoryPool pool, gpumem::device device)
      : async_resource_view{detail::foreign_driver_pool(pool, device)} {}

  /// Returns a view of the pool that cuMemAllocAsync uses on the device now. Throws std::invalid_argument, cuda_error.
  static async_resource_view current(gpumem::device device) {
    return async_resource_view{detail::current_driver_pool(device)};
  }

  friend bool operator==(async_resource_view const& a, async_resource_view const& b) noexcept {
    return a.state_ == b.state_;
  }

private:
  explicit async_resource_view(detail::driver_pool const& pool) : state_{&detail::driver_pool_view_state::of(pool)} {}

  friend driver_pool_base;
  friend resource_base<async_resource_view, detail::driver_pool_view_state, mr::device_accessible>;
  detail::driver_pool_view_state& state() const noexcept { return *state_; }
  detail::driver_pool_view_state* state_;
};

static_assert(mr::resource_with<async_resource_view, mr::device_accessible>);

/// Allocates as async_managed_resource does, but from a pool that gpumem does not own. This is the driver's default
/// pool of managed memory without a preferred location, or a pool that is named by its handle. The pool must outlive
/// the view's blocks, and may be destroyed only after the host has seen their frees complete. A block must be freed
/// through a view of the same pool.
///
/// A value type: all views of the same pool are equal. Any thread.
export class async_managed_resource_view
    : public detail::driver_pool_base<async_managed_resource_view, detail::driver_pool_view_state,
                                      mr::device_accessible, mr::host_accessible> {
public:
  /// The memory may be used on every stream immediately, without an order after the allocation.
  static constexpr bool stream_ordered = false;

  /// Uses the default pool. Throws std::invalid_argument, and cuda_error if the driver has none.
  explicit async_managed_resource_view(gpumem::device device = gpumem::device{0})
      : async_managed_resource_view{detail::default_driver_pool(detail::driver_pool_kind::managed, device)} {}

  /// Uses the pool of this handle. The host and the device must be able to access its memory. Throws
  /// std::invalid_argument for a null handle, and cuda_error.
  async_managed_resource_view(CUmemoryPool pool, gpumem::device device)
      : async_managed_resource_view{detail::foreign_driver_pool(pool, device, true)} {}

  friend bool operator==(async_managed_resource_view const& a, async_managed_resource_view const& b) noexcept {
    return a.state_ == b.state_;
  }

private:
  explicit async_managed_resource_view(detail::driver_pool const& pool)
      : state_{&detail::driver_pool_view_state::of(pool)} {}

  friend driver_pool_base;
  friend resource_base<async_managed_resource_view, detail::driver_pool_view_state, mr::device_accessible,
                       mr::host_accessible>;
  detail::driver_pool_view_state& state() const noexcept { return *state_; }
  detail::driver_pool_view_state* state_;
};

static_assert(mr::resource_with<async_managed_resource_view, mr::device_accessible, mr::host_accessible>);

/// Allocates as async_pinned_resource does, but from a pool that gpumem does not own. That pool is the driver's default
/// pool of page-locked host memory, or any pool of page-locked host memory by its handle. A view of the default pool
/// gives the device access to all memory of that pool; the access stays for ever. For ownership, copies and
/// thread-safety see async_resource_view.
export class async_pinned_resource_view
    : public detail::driver_pool_base<async_pinned_resource_view, detail::driver_pool_view_state, mr::device_accessible,
                                      mr::host_accessible> {
public:
  /// The memory may be used on every stream immediately, without an order after the allocation.
  static constexpr bool stream_ordered = false;

  /// Uses the default pool. Throws std::invalid_argument, and cuda_error if the driver has none.
  explicit async_pinned_resource_view(gpumem::device device = gpumem::device{0})
      : async_pinned_resource_view{detail::default_driver_pool(detail::driver_pool_kind::pinned, device)} {}

  /// Uses the pool whose handle is `pool`. The host and `device` must be able to access its memory. Throws
  /// std::invalid_argument for a null handle, and cuda_error.
  async_pinned_resource_view(CUmemoryPool pool, gpumem::device device)
      : async_pinned_resource_view{detail::foreign_driver_pool(pool, device, true)} {}

  friend bool operator==(async_pinned_resource_view const& a, async_pinned_resource_view const& b) noexcept {
    return a.state_ == b.state_;
  }

private:
  explicit async_pinned_resource_view(detail::driver_pool const& pool)
      : state_{&detail::driver_pool_view_state::of(pool)} {}

  friend driver_pool_base;
  friend resource_base<async_pinned_resource_view, detail::driver_pool_view_state, mr::device_accessible,
                       mr::host_accessible>;
  detail::driver_pool_view_state& state() const noexcept { return *state_; }
  detail::driver_pool_view_state* state_;
};

static_assert(mr::resource_with<async_pinned_resource_view, mr::device_accessible, mr::host_accessible>);

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
  explicit async_managed_resource(gpumem::device device = gpumem::device{0}, async_options options = {})
      : owned_driver_pool{new detail::async_state{detail::driver_pool_kind::managed, device, std::move(options)}} {}
};

static_assert(mr::resource_with<async_managed_resource, mr::device_accessible, mr::host_accessible>);

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
  explicit async_pinned_resource(gpumem::device device = gpumem::device{0}, async_options options = {})
      : owned_driver_pool{new detail::async_state{detail::driver_pool_kind::pinned, device, std::move(options)}} {}
};

static_assert(mr::resource_with<async_pinned_resource, mr::device_accessible, mr::host_accessible>);

} // namespace gpumem
