// stream_allocator: a standard allocator made of a polymorphic_allocator and a stream.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:stream_allocator;
import :any_memory;
import :cuda;
import :polymorphic_allocator;
import :std;

namespace gpumem {

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
