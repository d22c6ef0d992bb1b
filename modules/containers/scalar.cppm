// One value in stream order, over any resource.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:scalar;
import :allocation;
import :any_memory;
import :cuda;
import :std;
import :stream;
import :uninitialized_vector;

namespace gpumem {

/// A value in a resource's memory, for work on a device to read and write. Belongs to a stream, as a buffer does.
/// Move-only; one thread at a time.
export template <class T> class scalar {
public:
  using value_type = T;

  /// Not initialised. Throws as buffer.
  template <mr::resource R> scalar(stream_ref stream, R resource) : element_{stream, std::move(resource), 1} {}
  /// Set in the stream's order; the value may be gone when this returns.
  template <mr::resource R>
  scalar(stream_ref stream, R resource, T const& value) : scalar{stream, std::move(resource)} {
    set_value_async(value);
  }
  /// Not initialised, over the current resource of the stream's device.
  explicit scalar(stream_ref stream) : element_{stream, 1} {}

  /// A copy on the stream; out of the other's resource, or of one given.
  static scalar copy_of(stream_ref stream, scalar const& source) {
    return scalar{uninitialized_vector<T>::copy_of(stream, source.element_)};
  }
  template <mr::resource R> static scalar copy_of(stream_ref stream, R resource, scalar const& source) {
    return scalar{uninitialized_vector<T>::copy_of(stream, std::move(resource), source.element_)};
  }

  inline T* data() noexcept { return element_.data(); }
  inline T const* data() const noexcept { return element_.data(); }
  stream_ref stream() const noexcept { return element_.stream(); }
  any_memory const& resource() const noexcept { return element_.resource(); }

  /// The value, for which the host waits. Throws cuda_error; acquire_error on a stream that captures a graph.
  T value() const { return element_.front(); }
  /// The value in the order of another stream, which waits for the scalar's and is then waited for by it.
  T value(stream_ref stream) const { return element_.element_on(stream, 0); }

  /// In the order of the scalar's stream; the value may be gone when this returns. Throws as value().
  void set_value_async(T const& value) { element_.set_element_async(0, value); }
  /// Sets all its bytes to zero.
  void set_value_to_zero_async() { element_.set_element_to_zero_async(0); }

  /// See buffer.
  scoped_use use_on(stream_ref stream) const { return element_.use_on(stream); }
  void set_stream(stream_ref stream) { element_.set_stream(stream); }

private:
  explicit scalar(uninitialized_vector<T> element) noexcept : element_{std::move(element)} {}
  uninitialized_vector<T> element_;
};

} // namespace gpumem
