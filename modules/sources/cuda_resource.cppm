// cuda_resource, managed_resource and pinned_resource: each block is one driver call on one device.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:cuda_resource;
import :cuda;
import :device;
import :driver;
import :error;
import :resource;
import :source_state;
import :std;
import :stream;

namespace gpumem::detail {

// A kind of memory: its two driver calls, made while the device is current. Each kind aligns to 256 bytes.
struct driver_memory {
  char const* name;
  CUresult (*allocate)(CUdeviceptr* address, std::size_t bytes);
  CUresult (*free)(CUdeviceptr address);
};

// Makes a driver call while the device is current, and returns its result. If the device was reset or is lost, or in a
// forked child, does not make the call and returns the error for that state. The call belongs to no graph. Nevertheless
// it would invalidate a global-mode graph capture of another thread; relaxed_capture prevents that.
template <class Call> CUresult call_on(class device device, Call call) noexcept {
  try {
    device.require();
    device_guard const scope{device};
    relaxed_capture const mode;
    return call();
  } catch (cuda_error const& e) { return static_cast<CUresult>(e.status()); }
}

// One object per kind of memory and device. Never destroyed: the resources are values that point to it.
class device_source final : public source_state {
public:
  device_source(driver_memory const& kind, class device device) noexcept;
  static device_source& of(driver_memory const& kind, class device device);
  class device where() noexcept { return device_; }

private:
  expected<void*, failure> allocate_memory(stream_key const& key, std::size_t bytes,
                                           std::size_t alignment) noexcept override;
  bool free_memory(block const& returned) noexcept override;
  void mark_lost(stream_key const& key, CUresult error) noexcept override;

  driver_memory const& kind_;
  class device device_;
};

} // namespace gpumem::detail

namespace gpumem {

namespace detail {
device_source& cuda_source(device device);
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
  explicit cuda_resource(gpumem::device device = gpumem::device{0}) : state_{&detail::cuda_source(device)} {}

  friend bool operator==(cuda_resource const& a, cuda_resource const& b) noexcept { return a.state_ == b.state_; }

private:
  friend resource_base<cuda_resource, detail::device_source, mr::device_accessible>;
  detail::device_source& state() const noexcept { return *state_; }
  detail::device_source* state_;
};

static_assert(mr::resource_with<cuda_resource, mr::device_accessible>);

namespace detail {
device_source& managed_source(device device);
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
  explicit managed_resource(gpumem::device device = gpumem::device{0}) : state_{&detail::managed_source(device)} {}

  friend bool operator==(managed_resource const& a, managed_resource const& b) noexcept { return a.state_ == b.state_; }

private:
  friend base;
  detail::device_source& state() const noexcept { return *state_; }
  detail::device_source* state_;
};

static_assert(mr::resource_with<managed_resource, mr::device_accessible, mr::host_accessible>);

namespace detail {
device_source& pinned_source(device device);
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
  explicit pinned_resource(gpumem::device device = gpumem::device{0}) : state_{&detail::pinned_source(device)} {}

  friend bool operator==(pinned_resource const& a, pinned_resource const& b) noexcept { return a.state_ == b.state_; }

private:
  friend base;
  detail::device_source& state() const noexcept { return *state_; }
  detail::device_source* state_;
};

static_assert(mr::resource_with<pinned_resource, mr::device_accessible, mr::host_accessible>);

} // namespace gpumem
