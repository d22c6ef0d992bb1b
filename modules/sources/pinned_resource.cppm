// pinned_resource: page-locked host memory by cuMemHostAlloc, one driver call per block.
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

/// Page-locked host memory, portable and mapped: every device can access it at the same address, and copies from and to
/// it are asynchronous. The host, and work on any stream, may touch the memory as soon as an allocation returns. For
/// alignments above 256 bytes more bytes are allocated than requested. For memory on one NUMA node see
/// async_pinned_resource.
///
/// The host may reuse freed memory immediately, so a stream-ordered free waits on the host for its stream. Frees on
/// capturing streams, loss of the device and statistics are as for cuda_resource. A value type; all objects of one
/// device are equal. Any thread.
export class pinned_resource
    : public resource_base<pinned_resource, detail::device_source, mr::device_accessible, mr::host_accessible> {
  using base = resource_base<pinned_resource, detail::device_source, mr::device_accessible, mr::host_accessible>;

public:
  /// The memory may be used on every stream immediately, without an order after the allocation.
  static constexpr bool stream_ordered = false;

  /// Allocates in the device's primary context. Throws std::invalid_argument if the device does not exist, and
  /// cuda_error.
  explicit pinned_resource(gpumem::device where = gpumem::device{0}) : state_{&detail::pinned_source(where)} {}

  friend bool operator==(pinned_resource const& a, pinned_resource const& b) noexcept { return a.state_ == b.state_; }

private:
  friend base;
  detail::device_source& state() const noexcept { return *state_; }
  detail::device_source* state_;
};

static_assert(mr::resource_with<pinned_resource, mr::device_accessible, mr::host_accessible>);

} // namespace gpumem
