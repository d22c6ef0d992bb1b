// cuda_resource: device memory by cuMemAlloc, one driver call per block.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:cuda_resource;
import :cuda;
import :device;
import :device_source;
import :resource;

namespace gpumem {

namespace detail {
device_source& cuda_source(device where);
} // namespace detail

/// Calls cuMemAlloc and cuMemFree on one device. The memory may be used on every stream immediately. A call takes tens
/// of microseconds. The driver aligns to 256 bytes. For larger alignments more bytes are allocated than requested.
///
/// A free waits on the host for its stream. It does not rely on a wait inside cuMemFree: the driver does not promise
/// that wait for every kind of memory. `deallocate_sync` only calls cuMemFree, and waits only as long as that does.
///
/// A free on a capturing stream is deferred: a later call outside a capture frees the block. That can be any call if
/// gpumem made or adopted the stream. For other streams it must be a call on the stream itself, or come after an event
/// has shown that the stream's work is complete. After the device is lost, a free makes no driver call and only updates
/// the statistics.
///
/// Statistics: live and reserved bytes and their peaks, allocations, frees, failures. All cuda_resource objects of a
/// device share them. A value type; all objects of one device are equal. Any thread.
export class cuda_resource : public resource_base<cuda_resource, detail::device_source, mr::device_accessible> {
public:
  /// The memory may be used on every stream immediately, without an order after the allocation.
  static constexpr bool stream_ordered = false;

  /// Throws std::invalid_argument if the device does not exist, and cuda_error.
  explicit cuda_resource(gpumem::device where = gpumem::device{0}) : state_{&detail::cuda_source(where)} {}

  friend bool operator==(cuda_resource const& a, cuda_resource const& b) noexcept { return a.state_ == b.state_; }

private:
  friend resource_base<cuda_resource, detail::device_source, mr::device_accessible>;
  detail::device_source& state() const noexcept { return *state_; }
  detail::device_source* state_;
};

static_assert(mr::resource_with<cuda_resource, mr::device_accessible>);

} // namespace gpumem
