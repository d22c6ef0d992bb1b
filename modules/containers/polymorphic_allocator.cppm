// Allocators over any resource: polymorphic_allocator and stream_allocator.
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

/// An allocator for standard containers, over any resource. It allocates and frees in the order of one stream. If a
/// container touches its elements on the host, the host must be able to access the memory. Two allocators are equal if
/// their resources and streams are. When a container is assigned, moved or swapped, its allocator is too. A move of an
/// allocator is a copy. Any thread.
export template <class T> class stream_allocator {
public:
  /// Types that containers expect of an allocator.
  using value_type = T;
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;
  using is_always_equal = std::false_type;

  /// Makes an allocator for `stream`, which must outlive the containers.
  stream_allocator(stream_ref stream, polymorphic_allocator<T> allocator)
      : allocator_{std::move(allocator)}, stream_{stream} {}
  template <class U>
  stream_allocator(stream_allocator<U> const& other) noexcept
      : allocator_{other.allocator()}, stream_{other.stream()} {}

  /// Calls polymorphic_allocator::allocate() with the stream of this allocator.
  [[nodiscard]] T* allocate(std::size_t count) { return allocator_.allocate(count, stream_); }
  /// Calls polymorphic_allocator::deallocate() with the stream of this allocator.
  void deallocate(T* pointer, std::size_t count) noexcept { allocator_.deallocate(pointer, count, stream_); }

  stream_ref stream() const noexcept { return stream_; }
  /// Returns the allocator without the stream.
  polymorphic_allocator<T> const& allocator() const noexcept { return allocator_; }

  template <class U> friend bool operator==(stream_allocator const& a, stream_allocator<U> const& b) {
    return a.stream() == b.stream() && a.allocator() == b.allocator();
  }

private:
  polymorphic_allocator<T> allocator_;
  stream_ref stream_;
};

} // namespace gpumem
