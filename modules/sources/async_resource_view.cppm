// async_resource_view: stream-ordered device memory from a driver pool that gpumem does not own.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:async_resource_view;
import :cuda;
import :device;
import :driver_pool;
import :resource;

namespace gpumem {

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
  explicit async_resource_view(gpumem::device where = gpumem::device{0})
      : async_resource_view{detail::default_driver_pool(where)} {}

  /// Uses the pool whose handle is `pool`; its memory must lie on the device `where`. Throws std::invalid_argument for
  /// a null handle, and cuda_error.
  async_resource_view(CUmemoryPool pool, gpumem::device where)
      : async_resource_view{detail::foreign_driver_pool(pool, where)} {}

  /// Returns a view of the pool that cuMemAllocAsync uses on the device now. Throws std::invalid_argument, cuda_error.
  static async_resource_view current(gpumem::device where) {
    return async_resource_view{detail::current_driver_pool(where)};
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

} // namespace gpumem
