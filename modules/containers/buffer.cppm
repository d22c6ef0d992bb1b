// Bytes in stream order, over any resource.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:buffer;
import :allocation;
import :any_memory;
import :cuda;
import :device;
import :std;
import :stream;
import :stream_work;

namespace gpumem {

/// Owns bytes of any resource, not initialised, and belongs to a stream: what the buffer does, it enqueues there, and
/// in that order its memory is valid and is freed. A stream of one's own work uses it behind `use_on`, or takes it over
/// with `set_stream`. 112 bytes; move-only; one thread at a time.
///
/// It holds the resource, so it may outlive every other handle of it; it may die with another device current, on any
/// thread, and after its stream was retired. Sizes in bytes. A call throws cuda_error if the driver refuses, and
/// std::invalid_argument on a buffer that was moved from or default-constructed, which is empty and can be assigned to,
/// destroyed, and asked for its size.
export class buffer {
public:
  static constexpr std::size_t default_alignment = 256;

  /// Empty, without resource and stream.
  buffer() noexcept = default;
  /// Throws as the resource's `allocate`; std::invalid_argument for an alignment that is no power of two, for an empty
  /// resource, and for a default stream while another device is current.
  buffer(stream_ref stream, any_memory resource, std::size_t bytes, std::size_t alignment = default_alignment);
  template <mr::resource R>
  buffer(stream_ref stream, R resource, std::size_t bytes, std::size_t alignment = default_alignment)
      : buffer{stream, make_any_memory(std::move(resource)), bytes, alignment} {}
  /// Over the current resource of the stream's device.
  explicit buffer(stream_ref stream, std::size_t bytes, std::size_t alignment = default_alignment);
  /// Takes over a block, as `co_await acquire(…)` gives it; grows out of the resource.
  buffer(allocation block, any_memory resource);
  template <mr::resource R>
  buffer(allocation block, R resource) : buffer{std::move(block), make_any_memory(std::move(resource))} {}

  /// A buffer of so many bytes, copied from where `source` points to; see copy_from.
  template <mr::resource R>
  static buffer copy_of(stream_ref stream, R resource, void const* source, std::size_t bytes,
                        std::size_t alignment = default_alignment) {
    buffer made{stream, std::move(resource), bytes, alignment};
    made.copy_from(source, bytes);
    return made;
  }
  /// A copy on the stream, of the bytes without spare capacity; out of the other's resource, or of one given.
  static buffer copy_of(stream_ref stream, buffer const& source);
  template <mr::resource R> static buffer copy_of(stream_ref stream, R resource, buffer const& source) {
    buffer made{stream, std::move(resource), source.size(), source.alignment()};
    made.copy_from(source, source.size());
    return made;
  }

  buffer(buffer&& other) noexcept;
  /// Frees what it had, in the order of its own stream.
  buffer& operator=(buffer&& other) noexcept;
  ~buffer() = default;

  /// Null without capacity.
  inline void* data() const noexcept { return block_.data(); }
  inline std::size_t bytes() const noexcept { return size_; }
  /// The same.
  inline std::size_t size() const noexcept { return size_; }
  inline bool is_empty() const noexcept { return size_ == 0; }
  /// Bytes that it can have without allocating.
  inline std::size_t capacity() const noexcept { return block_.bytes(); }
  std::size_t alignment() const noexcept { return block_.alignment(); }
  stream_ref stream() const noexcept { return block_.stream(); }
  /// Empty if the buffer was moved from.
  any_memory const& resource() const noexcept { return resource_; }
  /// Whole elements of T that fit.
  template <class T> span<T> as() const noexcept { return {static_cast<T*>(data()), size_ / sizeof(T)}; }

  /// Keeps the contents as far as they fit; what is added is not initialised. Within the capacity it moves nothing;
  /// beyond, it allocates exactly so much and copies. Throws as `allocate`; the buffer is then as before.
  void resize(std::size_t bytes);
  /// Allocates, if need be, so that resizing to this is free.
  void reserve(std::size_t bytes);
  /// Allocates anew so that there is no spare capacity.
  void shrink_to_fit();
  /// Frees all; resource, stream and alignment stay.
  void clear();

  /// Copies in, to the offset, from any memory that the driver can copy from. The source is read in the order of the
  /// buffer's stream: pageable host memory is read at the call and may be changed when this returns, any other only
  /// once the stream is there. Throws std::out_of_range beyond the size.
  ///
  /// A buffer in memory that no device reaches is copied to and from host pointers by a driver that does not wait for
  /// the stream: such a call first waits on the host, and throws acquire_error on a stream that captures a graph.
  void copy_from(void const* source, std::size_t bytes, std::size_t offset = 0);
  /// Copies out, from the offset. Into pageable host memory it waits for the stream; else the target is valid in the
  /// stream's order. Throws std::out_of_range.
  void copy_to(void* target, std::size_t bytes, std::size_t offset = 0) const;
  /// Copies from another buffer, which may belong to another stream or device: both streams are ordered, before and
  /// after. Throws std::out_of_range, and std::invalid_argument if source and target overlap.
  void copy_from(buffer const& source, std::size_t bytes, std::size_t offset = 0, std::size_t source_offset = 0);
  /// Takes on the size and the contents of the other; its own contents are not kept if that fails.
  void assign(buffer const& source);
  /// Copies out and waits on the host until that is done. Throws acquire_error on a stream that captures a graph.
  void read(void* target, std::size_t bytes, std::size_t offset = 0) const;
  /// The same in the order of another stream, which first waits for the buffer's and which the buffer's then waits for.
  void read_on(stream_ref stream, void* target, std::size_t bytes, std::size_t offset = 0) const;
  /// Copies in from pageable host memory, a local variable say, that may be gone when this returns. Throws
  /// acquire_error on a stream that captures a graph, which would only note its address.
  void write(void const* source, std::size_t bytes, std::size_t offset = 0);

  /// Sets every byte; memory that no device reaches is set by a host function in the stream's order.
  void fill(std::byte value) { fill(value, size_); }
  /// Throws std::out_of_range.
  void fill(std::byte value, std::size_t bytes, std::size_t offset = 0);

  /// From now on the stream may use the buffer; when the guard dies the buffer's stream waits for it.
  scoped_use use_on(stream_ref stream) const;
  /// The stream waits for the buffer's stream and becomes its stream. If it throws, the buffer is as before.
  void set_stream(stream_ref stream);
  /// Waits on the host for all work enqueued on the buffer's stream. Throws cuda_error; acquire_error in a capture.
  void synchronize() const;

  /// Gives up the block, with all its capacity; the buffer is then as moved from.
  allocation release() noexcept;

private:
  detail::stream_work work() const { return {stream(), home()}; }
  device home() const;
  void require_range(std::size_t bytes, std::size_t offset) const;
  allocation obtain(stream_ref stream, std::size_t bytes, std::size_t alignment);
  void replace(allocation fresh);
  void move_to(std::size_t capacity);
  void copy_on(detail::stream_work const& on, void* to, void const* from, std::size_t bytes, bool target_reached) const;

  any_memory resource_;
  allocation block_;
  std::size_t size_ = 0;
  int home_ = -1; // the device of the stream; none when moved from
};

static_assert(sizeof(buffer) == 112);

} // namespace gpumem
