// A block of memory that frees itself, in stream order.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:allocation;
import :cuda;
import :device;
import :event;
import :services;
import :std;
import :stream;
import :stream_timeline;

namespace gpumem {

/// Guards a use of a block on another stream. The destructor makes the block's stream wait for the work that is
/// enqueued on the other stream by then. The block and both streams must live until then. Move-only.
export class [[nodiscard]] scoped_use {
public:
  scoped_use(scoped_use&& other) noexcept = default;
  scoped_use& operator=(scoped_use&&) = delete;
  ~scoped_use();

private:
  friend class allocation;
  // `last_use` is an event made for `used_device`. The destructor records it on the stream `used_stream`.
  scoped_use(stream_ref home, device home_device, stream_ref used_stream, device used_device, event last_use) noexcept
      : home_{home}, used_stream_{used_stream}, home_device_{home_device}, used_device_{used_device},
        use_event_{std::move(last_use)} {}
  stream_ref home_;
  stream_ref used_stream_;
  device home_device_;
  device used_device_;
  event use_event_;
};

/// Owns a block: move-only, 48 bytes. It keeps the resource's internal state alive, even after all resource objects
/// that share it are gone. One thread at a time.
///
/// The destructor frees in the order of the block's stream. It uses the stream's handle, so the stream must live until
/// then, as with RMM's device_buffer. A program that destroys the stream earlier first calls reset() or set_stream()
/// with another stream. A block whose stream is the default stream of a thread can be destroyed on another thread,
/// which cannot use that stream's handle. Other streams can then reuse the block only after an event on that default
/// stream. gpumem records this event later, in a call of the default stream's own thread.
export class [[nodiscard]] allocation {
public:
  allocation() noexcept = default;
  /// Takes over a block that the resource behind `services` has allocated and counts as live. `services` names the
  /// resource's functions and state.
  inline allocation(services_handle services, stream_key const& stream, void* data, std::size_t bytes,
                    std::size_t alignment) noexcept
      : data_{data}, bytes_{bytes}, alignment_log2_{static_cast<unsigned>(std::countr_zero(alignment))},
        services_{services}, timeline_{&stream.identity().timeline()}, stream_{stream.identity().handle()} {
    if (data_) hold();
  }
  allocation(allocation&& other) noexcept { swap(other); }
  allocation& operator=(allocation&& other) noexcept {
    allocation{std::move(other)}.swap(*this);
    return *this;
  }
  inline ~allocation() {
    if (data_) reset();
  }

  /// Returns the address of the block; null for 0 bytes.
  inline void* data() const noexcept { return data_; }
  /// Returns data() as the driver's pointer type.
  inline CUdeviceptr address() const noexcept { return reinterpret_cast<CUdeviceptr>(data_); }
  /// Returns the requested bytes.
  inline std::size_t bytes() const noexcept { return bytes_; }
  /// Returns the alignment of the request, in bytes.
  inline std::size_t alignment() const noexcept { return std::size_t{1} << alignment_log2_; }
  /// Returns the stream in whose order the block is valid and will be freed.
  inline stream_ref stream() const noexcept { return stream_ref{stream_}; }
  /// Returns the block as a span of as many whole elements of T as fit.
  template <class T> span<T> as() const noexcept { return {static_cast<T*>(data_), bytes_ / sizeof(T)}; }
  /// Returns whether there is a block: false for 0 bytes and after a move from this object.
  inline explicit operator bool() const noexcept { return data_ != nullptr; }

  /// Gives up ownership and returns the pointer. The caller frees it by `deallocate` of the resource, which must still
  /// live.
  [[nodiscard]] void* release() noexcept;
  /// Frees the block now, in the order of its stream.
  void reset() noexcept;
  /// Frees the block now, in the order of `stream`, which the caller has made wait for all uses. Throws cuda_error.
  /// Also throws std::invalid_argument for the handle of a default stream while another device is current, and for a
  /// stream of a device that may not use the block's memory.
  void reset(stream_ref stream);

  /// Makes `stream` wait for the block's stream, so that `stream` can use the block from now on. The destructor of the
  /// returned guard makes the block's stream wait for `stream`. Throws cuda_error, and std::invalid_argument for a
  /// stream of a device that may not use the block's memory.
  scoped_use use_on(stream_ref stream) const;
  /// Makes `stream` wait for the block's stream; `stream` is then the block's stream. Throws as use_on() does; the
  /// block then keeps its stream.
  void set_stream(stream_ref stream);

private:
  friend class buffer;
  // Orders the stream as use_on() does, also if its device may not use the block's memory: another device copies.
  scoped_use order_on(stream_key const& user, stream_ref stream) const;
  void swap(allocation& other) noexcept;
  void free(stream_key const& key) noexcept;
  device where() const;
  stream_key user(stream_ref stream) const;
  // While a block holds the timeline of its stream, gpumem does not reuse the timeline for another stream.
  inline void hold() const noexcept { timeline_->add_keeper(); }
  inline void drop() const noexcept { timeline_->remove_keeper(); }

  void* data_ = nullptr;
  std::size_t bytes_ : 58 = 0;
  std::size_t alignment_log2_ : 6 = 0;
  services_handle services_;
  detail::stream_timeline* timeline_ = nullptr;
  CUstream stream_ = nullptr;
};

static_assert(sizeof(allocation) == 48);

} // namespace gpumem
