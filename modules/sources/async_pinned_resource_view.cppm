// async_pinned_resource_view: page-locked host memory from a driver pool that gpumem does not own.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:async_pinned_resource_view;
import :cuda;
import :device;
import :driver_pool;
import :resource;

namespace gpumem {

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
  explicit async_pinned_resource_view(gpumem::device where = gpumem::device{0})
      : async_pinned_resource_view{detail::default_driver_pool(detail::driver_pool_kind::pinned, where)} {}

  /// Uses the pool whose handle is `pool`. The host and the device `where` must be able to access its memory. Throws
  /// std::invalid_argument for a null handle, and cuda_error.
  async_pinned_resource_view(CUmemoryPool pool, gpumem::device where)
      : async_pinned_resource_view{detail::foreign_driver_pool(pool, where, true)} {}

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

} // namespace gpumem
