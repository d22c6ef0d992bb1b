// Managed memory straight from the driver: one address for the host and all devices.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:managed_resource;
import :cuda;
import :device;
import :device_source;
import :resource;

namespace gpumem {

namespace detail {
device_source& managed_source(device where);
} // namespace detail

/// cuMemAllocManaged, attached to all streams: pages move to whoever touches them. Memory may be touched by the host
/// and by work on any stream as soon as it is given; on devices without concurrent managed access not by the host while
/// work runs. Alignments above 256 over-allocate.
///
/// The host may be given freed memory at once, so a stream-ordered free waits on the host for its stream, as
/// cuda_resource's does and host_resource's; captures, loss of the device, statistics as there. A value; copies are
/// equal; any thread.
export class managed_resource
    : public resource_base<managed_resource, detail::device_source, mr::device_accessible, mr::host_accessible> {
  using base = resource_base<managed_resource, detail::device_source, mr::device_accessible, mr::host_accessible>;

public:
  static constexpr bool stream_ordered = false;

  /// Throws std::invalid_argument, cuda_error.
  explicit managed_resource(gpumem::device where = gpumem::device{0}) : state_{&detail::managed_source(where)} {}

  friend bool operator==(managed_resource const& a, managed_resource const& b) noexcept { return a.state_ == b.state_; }

private:
  friend base;
  detail::device_source& state() const noexcept { return *state_; }
  detail::device_source* state_;
};

static_assert(mr::resource_with<managed_resource, mr::device_accessible, mr::host_accessible>);

} // namespace gpumem
