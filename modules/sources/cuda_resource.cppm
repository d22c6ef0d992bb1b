// Device memory straight from the driver, each block by a call of its own.
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

/// cuMemAlloc and cuMemFree of one device: memory usable on every stream at once, tens of microseconds a call. The
/// driver aligns to 256 bytes; larger alignments over-allocate.
///
/// A free waits on the host for the stream it is given. It does not rely on cuMemFree, which waits for the device too
/// but makes no promise for every kind of memory. `deallocate_sync` waits for nothing but what cuMemFree waits for. A
/// free on a capturing stream is kept until a call outside a capture can wait for the stream: any call for own and
/// adopted streams, a call on the same stream for others.
/// After the device is lost frees are bookkeeping.
///
/// Statistics: live and reserved bytes with their peaks, allocations, frees, failures; shared by all values of a
/// device. A value; copies are equal; any thread.
export class cuda_resource : public resource_base<cuda_resource, detail::device_source, mr::device_accessible> {
public:
  /// Memory comes in stream order only in the sense that it is there for every stream.
  static constexpr bool stream_ordered = false;

  /// Throws std::invalid_argument, cuda_error.
  explicit cuda_resource(gpumem::device where = gpumem::device{0}) : state_{&detail::cuda_source(where)} {}

  friend bool operator==(cuda_resource const& a, cuda_resource const& b) noexcept { return a.state_ == b.state_; }

private:
  friend resource_base<cuda_resource, detail::device_source, mr::device_accessible>;
  detail::device_source& state() const noexcept { return *state_; }
  detail::device_source* state_;
};

static_assert(mr::resource_with<cuda_resource, mr::device_accessible>);

} // namespace gpumem
