// A typed allocator over any resource, told the stream with each call.
// SPDX-License-Identifier: Apache-2.0
module;
#include <new>
export module gpumem:polymorphic_allocator;
import :any_memory;
import :cuda;
import :current_resource;
import :device;
import :std;

namespace gpumem {

/// Allocates arrays of T, not initialised, in the order of the stream that each call names. Owns its resource; copies
/// share it. Equal where one can free what the other allocated. Any thread.
export template <class T> class polymorphic_allocator {
public:
  using value_type = T;

  /// 256 bytes, or what T needs if that is more.
  static constexpr std::size_t alignment = std::max<std::size_t>(256, alignof(T));

  /// Over the current resource of the current device. Throws as current_resource.
  polymorphic_allocator() : resource_{make_any_memory(current_resource())} {}
  /// Throws as make_any_memory.
  template <mr::resource R> polymorphic_allocator(R resource) : resource_{make_any_memory(std::move(resource))} {}
  template <class U> polymorphic_allocator(polymorphic_allocator<U> const& other) : resource_{other.resource()} {}

  /// Throws std::bad_array_new_length, and as the resource's `allocate`.
  [[nodiscard]] T* allocate(std::size_t count, stream_ref stream) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_array_new_length{};
    return static_cast<T*>(resource_.allocate(stream, count * sizeof(T), alignment));
  }
  /// In the order of the stream, which may be another than that of the allocation if it is ordered after it.
  void deallocate(T* pointer, std::size_t count, stream_ref stream) noexcept {
    resource_.deallocate(stream, pointer, count * sizeof(T), alignment);
  }

  any_memory const& resource() const noexcept { return resource_; }

  template <class U> friend bool operator==(polymorphic_allocator const& a, polymorphic_allocator<U> const& b) {
    return a.resource() == b.resource();
  }

private:
  any_memory resource_;
};

} // namespace gpumem
