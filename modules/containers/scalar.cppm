// scalar: one value in memory of any resource, used in stream order.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:scalar;
import :allocation;
import :any_memory;
import :cuda;
import :std;
import :stream;
import :uninitialized_vector;

namespace gpumem {

/// One value in memory of a resource, for device work to read and write. Like a buffer, it belongs to a stream: its
/// operations are enqueued there, and its memory is freed in the order of that stream. Move-only; one thread at a time.
export template <class T> class scalar {
public:
  /// The type of the value.
  using value_type = T;

  /// Leaves the value uninitialised. Throws what `allocate` of the resource throws, and std::invalid_argument for an
  /// empty resource. Also throws the latter for a default stream handle if the current device is not that of the
  /// resource.
  template <mr::resource R> scalar(stream_ref stream, R resource) : element_{stream, std::move(resource), 1} {}
  /// Sets the value in the stream's order; `value` may be destroyed when this returns.
  template <mr::resource R>
  scalar(stream_ref stream, R resource, T const& value) : scalar{stream, std::move(resource)} {
    set_value_async(value);
  }
  /// Leaves the value uninitialised. Allocates from the current resource of the stream's device.
  explicit scalar(stream_ref stream) : element_{stream, 1} {}

  /// Returns a copy of `source` that belongs to `stream`. Its memory comes from the resource of `source`, or from the
  /// argument `resource` if it is passed.
  static scalar copy_of(stream_ref stream, scalar const& source) {
    return scalar{uninitialized_vector<T>::copy_of(stream, source.element_)};
  }
  template <mr::resource R> static scalar copy_of(stream_ref stream, R resource, scalar const& source) {
    return scalar{uninitialized_vector<T>::copy_of(stream, std::move(resource), source.element_)};
  }

  /// Returns the address of the value, for work on the stream.
  inline T* data() noexcept { return element_.data(); }
  inline T const* data() const noexcept { return element_.data(); }
  /// Returns the stream in whose order the value is valid.
  stream_ref stream() const noexcept { return element_.stream(); }
  /// Returns the resource, type-erased.
  any_memory const& resource() const noexcept { return element_.resource(); }

  /// Waits on the host for the value and returns it. Throws cuda_error, and acquire_error if the stream captures a
  /// graph.
  T value() const { return element_.front(); }
  /// Copies the value on `stream` instead of the scalar's stream, waits on the host for the copy and returns the value.
  /// `stream` first waits for the scalar's stream; after the copy the scalar's stream waits for `stream`.
  T value(stream_ref stream) const { return element_.element_on(stream, 0); }

  /// Sets the value in the stream's order; `value` may be destroyed when this returns. Throws cuda_error, and
  /// acquire_error if the stream captures a graph.
  void set_value_async(T const& value) { element_.set_element_async(0, value); }
  /// Sets all bytes of the value to zero, in the stream's order.
  void set_value_to_zero_async() { element_.set_element_to_zero_async(0); }

  /// Makes `stream` wait for the scalar's stream, so that it may use the value. When the returned guard is destroyed,
  /// the scalar's stream waits for `stream`.
  scoped_use use_on(stream_ref stream) const { return element_.use_on(stream); }
  /// Makes `stream` wait for the present stream of the scalar; from then on the scalar belongs to `stream`.
  void set_stream(stream_ref stream) { element_.set_stream(stream); }

private:
  explicit scalar(uninitialized_vector<T> element) noexcept : element_{std::move(element)} {}
  uninitialized_vector<T> element_;
};

} // namespace gpumem
