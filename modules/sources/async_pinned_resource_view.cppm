// Page-locked host memory of a driver pool that is somebody else's.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:async_pinned_resource_view;
import :cuda;
import :device;
import :driver_pool;
import :resource;

namespace gpumem {

/// Allocates from the driver's default pool of page-locked host memory, or from any such pool by its handle, as
/// async_pinned_resource does from its own. The default pool lets the device reach its memory from then on. Owning
/// nothing, a value, and the rest: as async_resource_view.
export class async_pinned_resource_view
    : public detail::driver_pool_base<async_pinned_resource_view, detail::driver_pool_view_state, mr::device_accessible,
                                      mr::host_accessible> {
public:
  /// Memory is there for every stream.
  static constexpr bool stream_ordered = false;

  /// The default pool. Throws std::invalid_argument, and cuda_error where the driver has none.
  explicit async_pinned_resource_view(gpumem::device where = gpumem::device{0})
      : async_pinned_resource_view{detail::default_driver_pool(detail::driver_pool_kind::pinned, where)} {}

  /// A pool by its handle, whose memory the host and the device reach. Throws std::invalid_argument for a null handle,
  /// cuda_error.
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
