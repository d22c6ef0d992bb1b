// callback_resource: memory from two functions of the caller.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:callback_resource;
import :cuda;
import :device;
import :error;
import :resource;
import :shared_state;
import :source_state;
import :std;
import :stream;

namespace gpumem {

/// Returns `bytes` > 0 bytes at a multiple of `alignment`; work enqueued on the stream from now on may use them. If it
/// cannot, returns null or throws.
export using callback_allocate = std::function<void*(stream_ref, std::size_t bytes, std::size_t alignment)>;
/// Frees memory, which work enqueued on the stream so far may still use. `bytes` and `alignment` are the allocation's.
export using callback_deallocate = std::function<void(stream_ref, void*, std::size_t bytes, std::size_t alignment)>;

namespace detail {

// The state of a callback_resource: calls the two functions of the caller. Counts its live blocks and
// the handles that refer to it. The state is deleted when neither a block nor a handle is left.
class callback_state final : public source_state, public shared_state {
public:
  callback_state(class device device, callback_allocate allocate, callback_deallocate deallocate);

  expected<void*, failure> try_allocate(stream_key const& key, std::size_t bytes, std::size_t alignment) noexcept;
  void deallocate(stream_key const& key, void* pointer, std::size_t bytes, std::size_t alignment) noexcept;
  class device where() noexcept { return device_; }
  std::uint64_t dropped_exceptions() const noexcept { return dropped_.load(std::memory_order_relaxed); }

private:
  ~callback_state() override;
  expected<void*, failure> allocate_memory(stream_key const& key, std::size_t bytes,
                                           std::size_t alignment) noexcept override;
  bool free_memory(block const& returned) noexcept override;
  bool free_in_order(stream_key const& key, block const& returned) noexcept override;
  void mark_lost(stream_key const& key, CUresult error) noexcept override;

  expected<void*, failure> allocate_ready(std::size_t bytes, std::size_t alignment) noexcept;
  expected<void*, failure> call_allocate(stream_ref stream, std::size_t bytes, std::size_t alignment) noexcept;
  void call_deallocate(stream_ref stream, block const& returned) noexcept;

  class device const device_;
  stream stream_; // for calls that have no stream of the caller
  callback_allocate const allocate_;
  callback_deallocate const deallocate_;
  std::atomic<std::uint64_t> dropped_{0};
};

} // namespace detail

/// Makes a resource of two functions. `Properties` says whether the device and the host can access the memory.
/// Without it, `callback_resource{device, allocate, deallocate}` makes a resource whose memory the device can access.
///
/// Both functions are called without a lock of gpumem, on any thread and on several threads at once. The device is
/// current meanwhile. A stream-ordered call passes the caller's stream. `allocate_sync` passes a stream of the resource
/// and then waits on the host for that stream. `deallocate_sync` passes the resource's stream too and does not wait. If
/// the stream of a free can no longer be used, the free passes the resource's stream, after the host has seen the
/// work on the block complete.
///
/// Failures of an allocation: null or std::bad_alloc is outcome::exhausted. A cuda_error is device_lost if it is
/// sticky, otherwise driver_error, with its code. A std::invalid_argument, and memory with a smaller alignment, are
/// invalid_argument. Any other exception is driver_error with code 0. A free cannot fail: if the function throws, the
/// exception is dropped and counted, and the block counts as freed.
///
/// An allocation on a capturing stream fails. A free on a capturing stream is deferred to a later call outside the
/// capture, as in cuda_resource. Misuse (for example a free of an unknown pointer) is reported, and the functions are
/// not called for it. Neither function is called after the device is lost, at process exit, and in a forked child. The
/// statistics have the same figures as those of cuda_resource, for this resource alone.
///
/// An object is a shared handle of 8 bytes: copies refer to the same functions and compare equal. The functions live
/// until the last handle is gone and the last block is freed. If a deferred free still cannot be done then, it is never
/// done. Any thread.
export template <class... Properties>
class callback_resource
    : public resource_base<callback_resource<Properties...>, detail::callback_state, Properties...> {
public:
  /// The memory may be used in the order of the stream on which it was allocated.
  static constexpr bool stream_ordered = true;

  /// Throws std::invalid_argument if a function is empty, std::bad_alloc, cuda_error.
  callback_resource(gpumem::device device, callback_allocate allocate, callback_deallocate deallocate)
      : state_{new detail::callback_state{device, std::move(allocate), std::move(deallocate)}} {}

  /// Returns how many exceptions of the deallocating function were dropped. Any thread.
  std::uint64_t dropped_exceptions() const { return state_->dropped_exceptions(); }

  friend bool operator==(callback_resource const& a, callback_resource const& b) noexcept {
    return a.state_ == b.state_;
  }

private:
  friend resource_base<callback_resource, detail::callback_state, Properties...>;
  bool has_state() const noexcept { return state_.get() != nullptr; }
  detail::callback_state& state() const noexcept { return *state_.get(); }
  state_ptr<detail::callback_state> state_;
};

callback_resource(gpumem::device, callback_allocate, callback_deallocate) -> callback_resource<mr::device_accessible>;

static_assert(mr::resource_with<callback_resource<mr::device_accessible>, mr::device_accessible>);

} // namespace gpumem
