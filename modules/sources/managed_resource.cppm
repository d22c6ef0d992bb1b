// managed_resource: managed memory by cuMemAllocManaged, one driver call per block.
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

/// Managed memory, attached to all streams: it has the same address for the host and all devices. Its pages move to the
/// processor that touches them. The host, and work on any stream, may touch the memory as soon as an allocation
/// returns. On devices without concurrent managed access the host must not touch the memory while work runs. For
/// alignments above 256 bytes more bytes are allocated than requested.
///
/// The host may reuse freed memory immediately, so a stream-ordered free waits on the host for its stream. A free on a
/// capturing stream is deferred: a later call outside a capture frees the block. After the device is lost, a free makes
/// no driver call and only updates the statistics. A value type; all objects of one device are equal and share the
/// statistics. Any thread.
export class managed_resource
    : public resource_base<managed_resource, detail::device_source, mr::device_accessible, mr::host_accessible> {
  using base = resource_base<managed_resource, detail::device_source, mr::device_accessible, mr::host_accessible>;

public:
  /// The memory may be used on every stream immediately, without an order after the allocation.
  static constexpr bool stream_ordered = false;

  /// Throws std::invalid_argument if the device does not exist, and cuda_error.
  explicit managed_resource(gpumem::device where = gpumem::device{0}) : state_{&detail::managed_source(where)} {}

  friend bool operator==(managed_resource const& a, managed_resource const& b) noexcept { return a.state_ == b.state_; }

private:
  friend base;
  detail::device_source& state() const noexcept { return *state_; }
  detail::device_source* state_;
};

static_assert(mr::resource_with<managed_resource, mr::device_accessible, mr::host_accessible>);

} // namespace gpumem
