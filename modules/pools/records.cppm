// Where the records of a pool's blocks come from.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:records;
import :block;
import :std;

namespace gpumem::detail {

/// Block records out of slabs that stay where they are while the pool lives, so a record may be looked at by a thread
/// that comes too late. Guarded by the lock of the pool that keeps it.
export class record_slab {
public:
  record_slab() = default;
  record_slab(record_slab const&) = delete;
  record_slab& operator=(record_slab const&) = delete;

  /// Makes sure that so many can be taken. Throws std::bad_alloc.
  inline void reserve(std::size_t count) {
    while (spare_count_ < count) grow();
  }
  /// One that was reserved; without tags, on no shelf.
  inline block& take() noexcept {
    auto& taken = *spare_;
    spare_ = taken.next;
    --spare_count_;
    taken.tags.clear();
    taken.become(block_state::granted);
    return taken;
  }
  inline void give(block& unused) noexcept {
    unused.next = spare_;
    spare_ = &unused;
    ++spare_count_;
  }

private:
  static constexpr std::size_t slab_records = 256;
  using slab = std::array<block, slab_records>;
  void grow();

  std::vector<std::unique_ptr<slab>> slabs_;
  block* spare_ = nullptr;
  std::size_t spare_count_ = 0;
};

} // namespace gpumem::detail
