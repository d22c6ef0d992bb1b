// prefetch: moves managed memory to a device or to the host, before it is used there.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:prefetch;
import :cuda;
import :device;
import :std;
import :stream;

namespace gpumem {

/// A place where managed memory can lie: a device, or the host. A small value.
export class memory_location {
public:
  /// Names a device.
  memory_location(gpumem::device device) noexcept : ordinal_{device.ordinal()} {}
  /// Returns the host.
  static memory_location host() noexcept { return memory_location{}; }

  /// Returns whether the location is the host.
  inline bool is_host() const noexcept { return ordinal_ < 0; }
  /// Returns the device's ordinal; -1 for the host.
  inline int ordinal() const noexcept { return ordinal_; }

  friend bool operator==(memory_location a, memory_location b) noexcept { return a.ordinal_ == b.ordinal_; }

private:
  memory_location() noexcept = default;
  int ordinal_ = -1;
};

namespace detail {
// Enqueues the prefetch on the key's stream and returns the driver's answer. If the stream captures, or may not be used
// any more, does not call the driver and returns an error. Marks the device as lost if it is. Never throws.
CUresult enqueue_prefetch(stream_key const& key, void const* pointer, std::size_t bytes,
                          memory_location location) noexcept;
} // namespace detail

/// Moves managed memory to a location, in the order of the stream; does not wait. Work that uses the memory during the
/// move is correct, but slower. The driver rounds the range to whole pages.
///
/// Returns whether the prefetch was enqueued. Returns false for memory that cannot be prefetched: memory that is not
/// managed, and any memory on a device without concurrent managed access. For 0 bytes returns false without a driver
/// call. A refused prefetch leaves no error behind, since the driver API keeps no last error.
///
/// Throws cuda_error for any other error of the driver. If the stream captures, its code is
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and the capture goes on. Throws std::invalid_argument for a default stream of
/// another device. Any thread.
export bool prefetch(void const* pointer, std::size_t bytes, memory_location location, stream_ref stream);

/// Moves the elements of a span, as the function above does.
export template <class T> bool prefetch(span<T> elements, memory_location location, stream_ref stream) {
  return gpumem::prefetch(static_cast<void const*>(elements.data()), elements.size() * sizeof(T), location, stream);
}

} // namespace gpumem
