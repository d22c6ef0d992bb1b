// The memory of the records that describe the blocks of a shard.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:block_metadata;
import :block;
import :std;

namespace gpumem::detail {

/// An array of block records, each numbered by its place. The array's addresses are reserved when the first record is
/// needed, and get memory as they are needed. The memory stays until the end of the pool, so a thread may read a record
/// that another thread releases meanwhile. All functions but `at` need the lock of the shard.
export class block_metadata {
public:
  /// Bits of a record's number: a shard has at most sixteen million records. Numbers below `first_number` have no
  /// record.
  static constexpr unsigned number_bits = 24;
  static constexpr std::uint32_t first_number = 2;

  block_metadata() = default;
  block_metadata(block_metadata const&) = delete;
  block_metadata& operator=(block_metadata const&) = delete;
  ~block_metadata();

  /// Makes sure that `count` records can be allocated. Throws std::bad_alloc, also if no number or address is left.
  inline void reserve(std::size_t count) {
    while (spare_count_ < count) [[unlikely]]
      grow();
  }
  /// Returns one of the reserved records. Its block has no uses and is on no free list.
  inline block& allocate() noexcept {
    auto& taken = *spare_;
    spare_ = taken.next;
    --spare_count_;
    taken.uses.clear();
    taken.set_state(block_state::allocated);
    return taken;
  }
  inline void release(block& unused) noexcept {
    unused.next = spare_;
    spare_ = &unused;
    ++spare_count_;
  }

  inline std::uint32_t number_of(block const& one) const noexcept { return static_cast<std::uint32_t>(&one - base_); }
  /// Returns the record with this number. A thread without the lock may pass only a number that it has loaded with
  /// memory_order_acquire, and that was stored after the record's allocation.
  inline block& at(std::uint32_t number) const noexcept { return base_[number]; }

private:
  void grow();
  void reserve_addresses();
  void add_memory();

  block* base_ = nullptr;
  void* reserved_ = nullptr;
  // On another cache line than `base_`, which threads without the lock read when they search for a block.
  alignas(64) std::size_t next_ = first_number; // numbers from this one on have no record yet
  std::size_t backed_ = 0;                      // numbers from this one on have no memory yet
  std::size_t end_ = 0;                         // numbers from this one on have no address
  block* spare_ = nullptr;
  std::size_t spare_count_ = 0;
};

} // namespace gpumem::detail
