// async_managed_resource_view: managed memory from a driver pool that gpumem does not own.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:async_managed_resource_view;
import :cuda;
import :device;
import :driver_pool;
import :resource;

namespace gpumem {

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
  explicit async_managed_resource_view(gpumem::device where = gpumem::device{0})
      : async_managed_resource_view{detail::default_driver_pool(detail::driver_pool_kind::managed, where)} {}

  /// Uses the pool of this handle. The host and the device must be able to access its memory. Throws
  /// std::invalid_argument for a null handle, and cuda_error.
  async_managed_resource_view(CUmemoryPool pool, gpumem::device where)
      : async_managed_resource_view{detail::foreign_driver_pool(pool, where, true)} {}

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

} // namespace gpumem
