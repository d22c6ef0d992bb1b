// Page-locked host memory straight from the driver.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:pinned_resource;
import :cuda;
import :device;
import :device_source;
import :resource;

namespace gpumem {

namespace detail {
device_source& pinned_source(device where);
} // namespace detail

/// cuMemHostAlloc, portable and mapped: host memory that every device reaches at the same address, and that copies to
/// and from in the background. Memory may be touched by the host and by work on any stream as soon as it is given.
/// Alignments above 256 over-allocate. For memory of one host node see async_pinned_resource.
///
/// The host may be given freed memory at once, so a stream-ordered free waits on the host for its stream, as
/// cuda_resource's does and host_resource's; captures, loss of the device, statistics as there. A value; copies are
/// equal; any thread.
export class pinned_resource
    : public resource_base<pinned_resource, detail::device_source, mr::device_accessible, mr::host_accessible> {
  using base = resource_base<pinned_resource, detail::device_source, mr::device_accessible, mr::host_accessible>;

public:
  static constexpr bool stream_ordered = false;

  /// The device in whose context the memory is made. Throws std::invalid_argument, cuda_error.
  explicit pinned_resource(gpumem::device where = gpumem::device{0}) : state_{&detail::pinned_source(where)} {}

  friend bool operator==(pinned_resource const& a, pinned_resource const& b) noexcept { return a.state_ == b.state_; }

private:
  friend base;
  detail::device_source& state() const noexcept { return *state_; }
  detail::device_source* state_;
};

static_assert(mr::resource_with<pinned_resource, mr::device_accessible, mr::host_accessible>);

} // namespace gpumem
