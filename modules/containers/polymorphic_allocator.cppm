// polymorphic_allocator: a typed allocator over any resource; each call names its stream.
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

/// Allocates uninitialised arrays of T, in the order of the stream that each call names. The allocator holds a handle
/// to its resource; copies refer to the same resource, and a move is a copy. Two allocators are equal if each can free
/// memory of the other. Any thread.
export template <class T> class polymorphic_allocator {
public:
  /// The type of the elements.
  using value_type = T;

  /// Alignment of all arrays: 256 bytes, or the alignment of T if that is more.
  static constexpr std::size_t alignment = std::max<std::size_t>(256, alignof(T));

  /// Uses the current resource of the current device. Throws what current_resource() throws.
  polymorphic_allocator() : polymorphic_allocator{current_resource()} {}
  /// Uses the given resource. Throws what make_any_memory() throws.
  template <mr::resource R>
  polymorphic_allocator(R resource) : resource_{new any_memory{make_any_memory(std::move(resource))}} {}
  // A move is a copy, since containers use an allocator after a move from it. No copy may throw.
  polymorphic_allocator(polymorphic_allocator const&) noexcept = default;
  polymorphic_allocator& operator=(polymorphic_allocator const&) noexcept = default;
  ~polymorphic_allocator() = default;
  template <class U>
  polymorphic_allocator(polymorphic_allocator<U> const& other) noexcept : resource_{other.resource_} {}

  /// Returns memory for `count` elements, valid in the order of the stream. Throws std::bad_array_new_length if the
  /// number of bytes overflows, and what `allocate` of the resource throws.
  [[nodiscard]] T* allocate(std::size_t count, stream_ref stream) {
    if (count > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_array_new_length{};
    return static_cast<T*>(resource_->allocate(stream, count * sizeof(T), alignment));
  }
  /// Frees in the order of the stream. That must be the stream of the allocation, or one that is ordered after it.
  void deallocate(T* pointer, std::size_t count, stream_ref stream) noexcept {
    resource_->deallocate(stream, pointer, count * sizeof(T), alignment);
  }

  /// Returns the resource, type-erased.
  any_memory const& resource() const noexcept { return *resource_; }

  template <class U> friend bool operator==(polymorphic_allocator const& a, polymorphic_allocator<U> const& b) {
    return &a.resource() == &b.resource() || a.resource() == b.resource();
  }

private:
  template <class U> friend class polymorphic_allocator;
  std::shared_ptr<any_memory> resource_; // never null
};

} // namespace gpumem
