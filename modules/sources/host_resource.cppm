// host_resource and system_resource: memory of the host; system_resource gives memory that devices can use, too.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:host_resource;
import :cuda;
import :device;
import :error;
import :resource;
import :services;
import :source_state;
import :std;
import :stream;

namespace gpumem {

namespace detail {

// The state of all host_resource objects: one per process, never destroyed. Belongs to no device.
class host_state final : public source_state {
public:
  host_state() noexcept;
  static host_state& instance();
  std::optional<class device> where() noexcept { return std::nullopt; }

private:
  expected<void*, failure> allocate_memory(stream_key const& key, std::size_t bytes,
                                           std::size_t alignment) noexcept override;
  bool free_memory(block const& returned) noexcept override;
  void mark_lost(stream_key const& key, CUresult error) noexcept override;
};

} // namespace detail

/// Pageable host memory by aligned operator new. allocate_sync() and deallocate_sync() need no device and no driver.
/// The host may touch the memory as soon as an allocation returns, and work on any stream may copy from and to it.
///
/// The host may reuse freed memory immediately, so a stream-ordered free waits on the host for its stream. A free on a
/// capturing stream is deferred to a later call, as in cuda_resource. The statistics have the same figures as those of
/// cuda_resource. A value type; all objects are equal. Any thread.
export class host_resource : public resource_base<host_resource, detail::host_state, mr::host_accessible> {
public:
  /// The memory may be used on every stream immediately, without an order after the allocation.
  static constexpr bool stream_ordered = false;

  /// Refers to the one state of the process.
  host_resource() : state_{&detail::host_state::instance()} {}

  friend bool operator==(host_resource const&, host_resource const&) noexcept { return true; }

private:
  friend resource_base<host_resource, detail::host_state, mr::host_accessible>;
  detail::host_state& state() const noexcept { return *state_; }
  detail::host_state* state_;
};

static_assert(mr::resource_with<host_resource, mr::host_accessible>);

/// Options of a system_resource.
export struct system_options {
  /// Bytes of device memory that blocks should leave free; 0: blocks get no advice (cuMemAdvise). See system_resource.
  std::size_t headroom = 0;
};

namespace detail {

// One object per device and headroom, never destroyed: the resources are values that point to it.
class system_source final : public source_state {
public:
  system_source(class device device, std::size_t headroom) noexcept;
  // Throws cuda_error with CUDA_ERROR_NOT_SUPPORTED if the device cannot access the memory.
  static system_source& of(class device device, std::size_t headroom);
  class device where() noexcept { return device_; }
  std::size_t headroom() const noexcept { return headroom_; }

private:
  expected<void*, failure> allocate_memory(stream_key const& key, std::size_t bytes,
                                           std::size_t alignment) noexcept override;
  bool free_memory(block const& returned) noexcept override;
  void mark_lost(stream_key const& key, CUresult error) noexcept override;

  CUresult advise(void* base, std::size_t bytes) noexcept;
  void take_advice_back(void* base, std::size_t bytes) noexcept;

  class device device_;
  std::size_t const headroom_;
};

} // namespace detail

/// Memory by aligned operator new, for devices that can access all memory of the host (HMM, or ATS as on Grace). The
/// host, and work on any stream, may touch the memory as soon as an allocation returns. Pages lie where they are
/// touched first, and may move to the processor that uses them.
///
/// With a headroom, each block gets advice (cuMemAdvise) when it is allocated. The first part of the block is advised
/// to lie on the device. This part is as large as the device's free memory beyond the headroom; blocks that nothing has
/// touched yet do not reduce that memory. The rest is advised to lie on the host, where the device accesses it. Blocks
/// with advice are whole pages of the host, and a free takes the advice back. If the driver refuses the advice, the
/// allocation fails with the driver's error.
///
/// The host may reuse freed memory immediately, so a stream-ordered free waits on the host for its stream. A free on a
/// capturing stream is deferred to a later call outside the capture. Loss of the device and the statistics are as for
/// cuda_resource. A value type; objects with the same device and headroom are equal. Any thread.
export class system_resource
    : public resource_base<system_resource, detail::system_source, mr::device_accessible, mr::host_accessible> {
  using base = resource_base<system_resource, detail::system_source, mr::device_accessible, mr::host_accessible>;

public:
  /// The memory may be used on every stream immediately, without an order after the allocation.
  static constexpr bool stream_ordered = false;

  /// Throws std::invalid_argument if the device does not exist. Throws cuda_error, with CUDA_ERROR_NOT_SUPPORTED if the
  /// device cannot access the memory.
  explicit system_resource(gpumem::device device = gpumem::device{0}, system_options options = {})
      : state_{&detail::system_source::of(device, options.headroom)} {}

  /// Returns whether the device can access the memory; false if the driver does not answer. Any thread.
  static bool supported(gpumem::device device) noexcept;
  /// Returns the headroom in bytes; 0 without one.
  std::size_t headroom() const noexcept { return state_->headroom(); }

  friend bool operator==(system_resource const& a, system_resource const& b) noexcept { return a.state_ == b.state_; }

private:
  friend base;
  detail::system_source& state() const noexcept { return *state_; }
  detail::system_source* state_;
};

static_assert(mr::resource_with<system_resource, mr::device_accessible, mr::host_accessible>);

} // namespace gpumem
