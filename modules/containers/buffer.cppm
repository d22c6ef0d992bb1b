// buffer: uninitialized memory in stream order, and the copies and fills that containers enqueue.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:buffer;
import :allocation;
import :any_memory;
import :cuda;
import :device;
import :std;
import :stream;

namespace gpumem::detail {

// Enqueues work on the stream `on`. While this object lives, `home`, the device of the stream, is current. So the
// handle of a default stream means the stream that it meant when the container got it. All functions throw cuda_error,
// also if the device is lost. Copies and fills of 0 bytes do nothing.
//
// Copies and fills touch memory from the device that has it, because another device may have no access to it. If that
// is not `home`, a stream of that device does the work: it first waits for `on`, and `on` then waits for it.
export class stream_work {
public:
  stream_work(stream_ref stream, device home);

  void copy(void* target, void const* source, std::size_t bytes) const;
  void fill(void* target, std::byte value, std::size_t bytes) const;
  // These enqueue a host function that copies or fills, in the stream's order. They are for memory that no device can
  // access.
  void copy_by_host(void* target, void const* source, std::size_t bytes) const;
  void fill_by_host(void* target, std::byte value, std::size_t bytes) const;
  // Waits on the host for all enqueued work. Throws acquire_error if the stream captures a graph, since a wait would
  // invalidate the capture.
  void wait() const;
  // Throws acquire_error if the stream captures a graph.
  void refuse_capture() const;

private:
  void require(CUresult result, char const* call) const;
  template <class Call> void run_at(device device, Call call, char const* text) const;

  device home_;
  device_guard scope_;
  stream_ref stream_;
};

} // namespace gpumem::detail

namespace gpumem {

/// Owns uninitialised bytes from any resource and belongs to a stream. Its copies and fills are enqueued on that
/// stream. Its memory is valid, and is freed, in the order of that stream. Another stream may use the buffer after
/// `use_on`, or take it over by `set_stream`. 112 bytes; move-only; one thread at a time.
///
/// The buffer holds a handle to the resource, so other handles may end before it. It may be destroyed on any thread,
/// while another device is current, and after the gpumem::stream object of its stream. Sizes are in bytes. Functions
/// throw cuda_error if a driver call fails, and std::invalid_argument on a buffer that was moved from or
/// default-constructed. Such a buffer is empty; it can be assigned to, destroyed, and asked for its size.
export class buffer {
public:
  /// The alignment that is used if the caller names none, in bytes.
  static constexpr std::size_t default_alignment = 256;

  /// Makes an empty buffer without resource and stream.
  buffer() noexcept = default;
  /// Allocates `bytes`. Throws what `allocate` of the resource throws. Throws std::invalid_argument if the alignment is
  /// not a power of two or the resource is empty. Also throws it for a default stream handle (0, 1 or 2) if the current
  /// device is not that of the resource.
  buffer(stream_ref stream, any_memory resource, std::size_t bytes, std::size_t alignment = default_alignment);
  template <mr::resource R>
  buffer(stream_ref stream, R resource, std::size_t bytes, std::size_t alignment = default_alignment)
      : buffer{stream, make_any_memory(std::move(resource)), bytes, alignment} {}
  /// Allocates from the current resource of the stream's device.
  explicit buffer(stream_ref stream, std::size_t bytes, std::size_t alignment = default_alignment);
  /// Takes over a block, for example the result of `co_await acquire(…)`. Later allocations of the buffer come from
  /// `resource`.
  buffer(allocation block, any_memory resource);
  template <mr::resource R>
  buffer(allocation block, R resource) : buffer{std::move(block), make_any_memory(std::move(resource))} {}

  /// Returns a buffer with a copy of `bytes` bytes at `source`; see copy_from.
  template <mr::resource R>
  static buffer copy_of(stream_ref stream, R resource, void const* source, std::size_t bytes,
                        std::size_t alignment = default_alignment) {
    buffer made{stream, std::move(resource), bytes, alignment};
    made.copy_from(source, bytes);
    return made;
  }
  /// Returns a copy of `source` that belongs to `stream`, without spare capacity. Its memory comes from the resource of
  /// `source`, or from the argument `resource` if it is passed.
  static buffer copy_of(stream_ref stream, buffer const& source);
  template <mr::resource R> static buffer copy_of(stream_ref stream, R resource, buffer const& source) {
    buffer made{stream, std::move(resource), source.size(), source.alignment()};
    made.copy_from(source, source.size());
    return made;
  }

  buffer(buffer&& other) noexcept;
  /// Takes over the memory of `other`. Frees the old memory of this buffer, in the order of its old stream.
  buffer& operator=(buffer&& other) noexcept;
  ~buffer() = default;

  /// Returns the address of the memory; null if the capacity is 0.
  inline void* data() const noexcept { return block_.data(); }
  /// Returns the size in bytes.
  inline std::size_t bytes() const noexcept { return size_; }
  /// Returns the size in bytes.
  inline std::size_t size() const noexcept { return size_; }
  /// Returns whether the size is 0.
  inline bool is_empty() const noexcept { return size_ == 0; }
  /// Returns the size up to which resize() does not allocate.
  inline std::size_t capacity() const noexcept { return block_.bytes(); }
  /// Returns the alignment of the memory, in bytes.
  std::size_t alignment() const noexcept { return block_.alignment(); }
  /// Returns the stream in whose order the memory is valid and will be freed.
  stream_ref stream() const noexcept { return block_.stream(); }
  /// Returns the resource, type-erased; empty if the buffer was moved from or default-constructed.
  any_memory const& resource() const noexcept { return resource_; }
  /// Returns a span over the memory as elements of T; a remainder smaller than T is left out.
  template <class T> span<T> as() const noexcept { return {static_cast<T*>(data()), size_ / sizeof(T)}; }

  /// Changes the size and keeps the contents up to the smaller of both sizes; added bytes are uninitialised. If `bytes`
  /// is more than the capacity, allocates exactly `bytes` and copies. If that throws, the buffer is unchanged.
  void resize(std::size_t bytes);
  /// Makes the capacity at least `bytes`: allocates and copies if it was less.
  void reserve(std::size_t bytes);
  /// Allocates again and copies, so that the capacity equals the size.
  void shrink_to_fit();
  /// Frees the memory in the order of the stream. The resource, the stream and the alignment stay.
  void clear();

  /// Copies `bytes` bytes from `source` to `offset`, in the order of the buffer's stream. The source is any memory from
  /// which the driver can copy. Pageable host memory is read during the call, so the caller can change it as soon as
  /// the call has returned. Other memory is read when the stream reaches the copy. Throws std::out_of_range if the
  /// bytes do not fit into the size.
  ///
  /// If no device can access the buffer's memory, the driver copies between that memory and other host memory without
  /// waiting for the stream. So this function first waits on the host for the stream, and throws acquire_error if the
  /// stream captures a graph.
  void copy_from(void const* source, std::size_t bytes, std::size_t offset = 0);
  /// Copies `bytes` bytes from the offset to `target`, in the order of the buffer's stream. If the target is pageable
  /// host memory, the call waits on the host for the stream. Throws std::out_of_range.
  void copy_to(void* target, std::size_t bytes, std::size_t offset = 0) const;
  /// Copies from another buffer, which may belong to another stream or device. The copy waits for earlier work on both
  /// streams, and later work on both waits for the copy. Throws std::out_of_range, and std::invalid_argument if source
  /// and target overlap.
  void copy_from(buffer const& source, std::size_t bytes, std::size_t offset = 0, std::size_t source_offset = 0);
  /// Takes the size of `source` and copies its contents. If that throws, the old contents may be lost.
  void assign(buffer const& source);
  /// Copies to `target` as copy_to() does, and waits on the host until the copy is complete. Throws acquire_error if
  /// the stream captures a graph.
  void read(void* target, std::size_t bytes, std::size_t offset = 0) const;
  /// Copies to `target` on another stream and waits on the host until the copy is complete. `stream` first waits for
  /// the buffer's stream; after the copy the buffer's stream waits for `stream`. Throws as read() does.
  void read_on(stream_ref stream, void* target, std::size_t bytes, std::size_t offset = 0) const;
  /// Copies from pageable host memory, such as a local variable, which may be destroyed when this returns. If the host
  /// can access the buffer's memory, waits on the host for the copy. Throws acquire_error if the stream captures a
  /// graph, since each launch of the graph would read that address again.
  void write(void const* source, std::size_t bytes, std::size_t offset = 0);

  /// Sets every byte in the stream's order. If no device can access the memory, a host function in the stream sets it.
  void fill(std::byte value) { fill(value, size_); }
  /// Sets `bytes` bytes from the offset on, in the stream's order. Throws std::out_of_range.
  void fill(std::byte value, std::size_t bytes, std::size_t offset = 0);

  /// Makes `stream` wait for the buffer's stream, so that it may use the buffer. When the returned guard is destroyed,
  /// the buffer's stream waits for `stream`. Throws std::invalid_argument for a stream of a device that may not use the
  /// memory; see `open_to`.
  scoped_use use_on(stream_ref stream) const;
  /// Makes `stream` wait for the present stream of the buffer; from then on the buffer belongs to `stream`. Throws
  /// as use_on() does; the buffer is then unchanged.
  void set_stream(stream_ref stream);
  /// Waits on the host for all work enqueued on the buffer's stream. Throws cuda_error, and acquire_error if the stream
  /// captures a graph.
  void synchronize() const;

  /// Gives up the block, with all its capacity, to the caller. The buffer is then as after a move.
  allocation release() noexcept;

private:
  detail::stream_work work() const { return {stream(), home()}; }
  device home() const;
  scoped_use order_on(stream_ref stream) const;
  void require_range(std::size_t bytes, std::size_t offset) const;
  allocation obtain(stream_ref stream, std::size_t bytes, std::size_t alignment);
  void replace(allocation fresh);
  void move_to(std::size_t capacity);
  void copy_on(detail::stream_work const& work, void* target, void const* source, std::size_t bytes,
               bool target_reached) const;

  any_memory resource_;
  allocation block_;
  std::size_t size_ = 0;
  int home_ = -1; // the device of the stream; -1 if moved from
};

static_assert(sizeof(buffer) == 112);

} // namespace gpumem
