// host_resource: pageable host memory.
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

} // namespace gpumem
