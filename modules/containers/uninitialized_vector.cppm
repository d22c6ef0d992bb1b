// uninitialized_vector and scalar: elements of one type in stream order.
// SPDX-License-Identifier: Apache-2.0
module;
#include <new>
#include <string>
export module gpumem:uninitialized_vector;
import :allocation;
import :any_memory;
import :buffer;
import :cuda;
import :std;
import :stream;

namespace gpumem {

/// A buffer of uninitialised elements. It works like the class `buffer`, except that sizes are in elements. Pointers
/// and iterators point into its memory. Work on the vector's stream may dereference them. The host may do so only if it
/// can access the memory. Move-only; one thread at a time. Functions throw std::out_of_range for an index beyond the
/// size, and std::bad_array_new_length for a count whose bytes overflow.
export template <class T>
  requires std::is_trivially_copyable_v<T> && std::is_object_v<T> && (!std::is_const_v<T>)
class uninitialized_vector {
public:
  /// Types that algorithms expect of a container.
  using value_type = T;
  using size_type = std::size_t;
  using difference_type = std::ptrdiff_t;
  using pointer = T*;
  using const_pointer = T const*;
  using iterator = T*;
  using const_iterator = T const*;

  /// Alignment of the memory: 256 bytes, or the alignment of T if that is more.
  static constexpr std::size_t alignment = std::max(buffer::default_alignment, alignof(T));

  /// Makes an empty vector without resource and stream.
  uninitialized_vector() noexcept = default;
  /// Allocates memory for `count` elements. Throws what the constructor of `buffer` throws.
  template <mr::resource R>
  uninitialized_vector(stream_ref stream, R resource, size_type count)
      : bytes_{stream, std::move(resource), bytes_of(count), alignment} {}
  /// Allocates from the current resource of the stream's device.
  explicit uninitialized_vector(stream_ref stream, size_type count) : bytes_{stream, bytes_of(count), alignment} {}
  /// Takes over a buffer. Throws std::invalid_argument if its size is no multiple of sizeof(T), or if it is not aligned
  /// for T.
  explicit uninitialized_vector(buffer bytes) : bytes_{std::move(bytes)} {
    auto const address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    if (bytes_.size() % sizeof(T) || address % alignof(T) || bytes_.alignment() < alignof(T)) {
      throw std::invalid_argument{"gpumem: the buffer does not hold whole, aligned elements"};
    }
  }

  /// Returns a vector with a copy of the elements; the copy is made in the stream's order, see buffer::copy_from().
  template <mr::resource R>
  static uninitialized_vector copy_of(stream_ref stream, R resource, gpumem::span<T const> source) {
    uninitialized_vector made{stream, std::move(resource), source.size()};
    made.copy_from(source);
    return made;
  }
  /// Returns a copy of `source` that belongs to `stream`, without spare capacity. Its memory comes from the resource of
  /// `source`, or from the argument `resource` if it is passed.
  static uninitialized_vector copy_of(stream_ref stream, uninitialized_vector const& source) {
    return uninitialized_vector{buffer::copy_of(stream, source.bytes_)};
  }
  template <mr::resource R>
  static uninitialized_vector copy_of(stream_ref stream, R resource, uninitialized_vector const& source) {
    return uninitialized_vector{buffer::copy_of(stream, std::move(resource), source.bytes_)};
  }

  /// Returns the address of the first element; null if the capacity is 0.
  inline T* data() noexcept { return static_cast<T*>(bytes_.data()); }
  inline T const* data() const noexcept { return static_cast<T const*>(bytes_.data()); }
  /// Returns the number of elements.
  inline size_type size() const noexcept { return bytes_.size() / sizeof(T); }
  /// Returns the size up to which resize() does not allocate.
  inline size_type capacity() const noexcept { return bytes_.capacity() / sizeof(T); }
  /// Returns whether the size is 0.
  inline bool is_empty() const noexcept { return size() == 0; }
  /// Returns the address of the first element.
  iterator begin() noexcept { return data(); }
  /// Returns the address after the last element.
  iterator end() noexcept { return data() + size(); }
  /// Returns the address of the first element.
  const_iterator begin() const noexcept { return data(); }
  /// Returns the address after the last element.
  const_iterator end() const noexcept { return data() + size(); }
  /// Returns all elements.
  gpumem::span<T> span() noexcept { return {data(), size()}; }
  gpumem::span<T const> span() const noexcept { return {data(), size()}; }
  /// Returns the stream in whose order the elements are valid.
  stream_ref stream() const noexcept { return bytes_.stream(); }
  /// Returns the resource, type-erased.
  any_memory const& resource() const noexcept { return bytes_.resource(); }

  /// Changes the size and keeps the elements up to the smaller of both sizes; added elements are uninitialised.
  void resize(size_type count) { bytes_.resize(bytes_of(count)); }
  /// Makes the capacity at least `count` elements: allocates and copies if it was less.
  void reserve(size_type count) { bytes_.reserve(bytes_of(count)); }
  /// Allocates again and copies, so that the capacity equals the size.
  void shrink_to_fit() { bytes_.shrink_to_fit(); }
  /// Frees the memory in the order of the stream.
  void clear() { bytes_.clear(); }
  /// Takes the size of `source` and copies its elements. If that throws, the old elements may be lost.
  void assign(uninitialized_vector const& source) { bytes_.assign(source.bytes_); }
  /// Copies all elements of `source` over the elements of this vector from index `first` on; see buffer::copy_from().
  void copy_from(gpumem::span<T const> source, size_type first = 0) {
    require_range(source.size(), first);
    bytes_.copy_from(source.data(), source.size_bytes(), first * sizeof(T));
  }
  /// Fills `target` with copies of the elements of this vector from index `first` on; see buffer::copy_to().
  void copy_to(gpumem::span<T> target, size_type first = 0) const {
    require_range(target.size(), first);
    bytes_.copy_to(target.data(), target.size_bytes(), first * sizeof(T));
  }
  /// Makes `stream` wait for the vector's stream. When the returned guard is destroyed, the vector's stream waits for
  /// `stream`.
  scoped_use use_on(stream_ref stream) const { return bytes_.use_on(stream); }
  /// Makes `stream` wait for the vector's present stream; from then on the vector belongs to `stream`.
  void set_stream(stream_ref stream) { bytes_.set_stream(stream); }
  /// Waits on the host for all work enqueued on the vector's stream.
  void synchronize() const { bytes_.synchronize(); }

  /// Sets an element in the stream's order; `value` may be destroyed when this returns. Throws acquire_error if the
  /// stream captures a graph.
  void set_element_async(size_type index, T const& value) {
    require_range(1, index);
    auto const local = std::bit_cast<raw>(value); // `value` may lie in pinned memory; write() needs pageable memory
    bytes_.write(local.data(), sizeof(T), index * sizeof(T));
  }
  /// Sets an element as set_element_async() does, and waits on the host until the element is set.
  void set_element(size_type index, T const& value) {
    set_element_async(index, value);
    synchronize();
  }
  /// Sets all bytes of an element to zero, in the stream's order.
  void set_element_to_zero_async(size_type index) {
    require_range(1, index);
    bytes_.fill(std::byte{0}, sizeof(T), index * sizeof(T));
  }
  /// Waits on the host for the element and returns its value.
  T element(size_type index) const {
    require_range(1, index);
    raw local;
    bytes_.read(local.data(), sizeof(T), index * sizeof(T));
    return std::bit_cast<T>(local);
  }
  /// Copies the element on `stream` instead of the vector's stream, waits on the host for the copy and returns the
  /// value; see buffer::read_on().
  T element_on(stream_ref stream, size_type index) const {
    require_range(1, index);
    raw local;
    bytes_.read_on(stream, local.data(), sizeof(T), index * sizeof(T));
    return std::bit_cast<T>(local);
  }
  /// Waits on the host for the first element and returns it.
  T front() const { return element(0); }
  /// Waits on the host for the last element and returns it.
  T back() const { return element(size() - 1); } // if empty, the index wraps to SIZE_MAX, which is out of range

  /// Gives the buffer up to the caller; the vector is then as after a move.
  buffer release() noexcept { return std::move(bytes_); }

private:
  using raw = std::array<std::byte, sizeof(T)>;

  static size_type bytes_of(size_type count) {
    if (count > std::numeric_limits<size_type>::max() / sizeof(T)) throw std::bad_array_new_length{};
    return count * sizeof(T);
  }
  void require_range(size_type count, size_type first) const {
    if (first > size() || count > size() - first) {
      throw std::out_of_range{"gpumem: index " + std::to_string(first) + ", count " + std::to_string(count) +
                              ": out of range of a vector of size " + std::to_string(size())};
    }
  }

  buffer bytes_;
};

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
