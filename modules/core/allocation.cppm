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

/// Ends a use of a block on another stream: at destruction the block's stream waits for what that stream has been
/// given. The block and both streams must live until then. Move-only.
export class [[nodiscard]] scoped_use {
public:
  scoped_use(scoped_use&& other) noexcept = default;
  scoped_use& operator=(scoped_use&&) = delete;
  ~scoped_use();

private:
  friend class allocation;
  // The event is of the device of the stream that uses.
  scoped_use(stream_ref home, device home_device, stream_ref used, device used_device, event happened) noexcept
      : home_{home}, used_{used}, home_device_{home_device}, used_device_{used_device}, happened_{std::move(happened)} {
  }
  stream_ref home_;
  stream_ref used_;
  device home_device_;
  device used_device_;
  event happened_;
};

/// Owns a block: move-only, 48 bytes. Its resource's state stays alive with it, whatever handles die. The destructor
/// frees in the order of the block's stream, with the stream's handle, which must live until then, as with RMM's
/// device_buffer; a program that destroys the stream earlier calls `reset(stream)` or `gives another stream(stream)`
/// before. A block of a thread's default stream may die on another thread: it is freed by the stream's identity then,
/// and reused on other streams once an event that the thread records later is complete. One thread at a time.
export class allocation {
public:
  allocation() noexcept = default;
  inline allocation(services_handle from, stream_key const& stream, void* data, std::size_t bytes,
                    std::size_t alignment) noexcept
      : data_{data}, bytes_{bytes}, alignment_log2_{static_cast<unsigned>(std::countr_zero(alignment))}, from_{from},
        timeline_{&stream.timeline()}, stream_{stream.handle()} {
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

  inline void* data() const noexcept { return data_; }
  /// The same as the driver spells it.
  inline CUdeviceptr address() const noexcept { return reinterpret_cast<CUdeviceptr>(data_); }
  inline std::size_t bytes() const noexcept { return bytes_; }
  inline std::size_t alignment() const noexcept { return std::size_t{1} << alignment_log2_; }
  /// The stream in whose order it is valid and will be freed.
  inline stream_ref stream() const noexcept { return stream_ref{stream_}; }
  /// Whole elements of T that fit.
  template <class T> span<T> as() const noexcept { return {static_cast<T*>(data_), bytes_ / sizeof(T)}; }
  /// False for 0 bytes and when moved from.
  inline explicit operator bool() const noexcept { return data_ != nullptr; }

  /// Gives up ownership: the caller frees, with the resource's `deallocate`. The resource's state then lives until
  /// that.
  [[nodiscard]] void* release() noexcept;
  /// Frees now.
  void reset() noexcept;
  /// Frees now in the order of this stream, which the caller has ordered after all use.
  void reset(stream_ref stream);

  /// From now on the stream may use the block; when the guard dies the block's stream waits for it. Throws cuda_error.
  scoped_use use_on(stream_ref stream) const;
  /// The stream waits for the block's stream and becomes its stream. Throws cuda_error; the block is then as before.
  void set_stream(stream_ref stream);

private:
  void swap(allocation& other) noexcept;
  void free(stream_key const& key) noexcept;
  device where() const;
  // The timeline serves no other stream while a block will be freed by it.
  inline void hold() const noexcept { timeline_->retain(); }
  inline void drop() const noexcept { timeline_->release(); }

  void* data_ = nullptr;
  std::size_t bytes_ : 58 = 0;
  std::size_t alignment_log2_ : 6 = 0;
  services_handle from_;
  detail::stream_timeline* timeline_ = nullptr;
  CUstream stream_ = nullptr;
};

static_assert(sizeof(allocation) == 48);

} // namespace gpumem
