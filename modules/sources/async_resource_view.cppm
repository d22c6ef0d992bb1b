// Device memory of a driver pool that is somebody else's.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:async_resource_view;
import :cuda;
import :device;
import :driver_pool;
import :resource;

namespace gpumem {

/// Allocates from a device's default pool, or from any pool of device memory by its handle, as async_resource does from
/// its own. It owns nothing and changes nothing of the pool but what it is told to: the default pool's release
/// threshold stays what it is, which is 0 unless somebody raised it. The pool has to outlive the view's blocks,
/// and is destroyed when the host has seen their frees done. A block goes back through a view of the same pool: an
/// async_resource is another resource, also over that pool.
///
/// A value; views of one pool are equal. Any thread.
export class async_resource_view
    : public detail::driver_pool_base<async_resource_view, detail::driver_pool_view_state, mr::device_accessible> {
public:
  /// The memory is valid in the order of the stream it was given to.
  static constexpr bool stream_ordered = true;

  /// The device's default pool. Throws std::invalid_argument, cuda_error.
  explicit async_resource_view(gpumem::device where = gpumem::device{0})
      : async_resource_view{detail::default_driver_pool(where)} {}

  /// A pool of the device by its handle. Throws std::invalid_argument for a null handle, cuda_error.
  async_resource_view(CUmemoryPool pool, gpumem::device where)
      : async_resource_view{detail::foreign_driver_pool(pool, where)} {}

  /// The pool from which cuMemAllocAsync allocates on the device now. Throws std::invalid_argument, cuda_error.
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
