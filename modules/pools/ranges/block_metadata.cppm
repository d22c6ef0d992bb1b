// Where the records of a pool's blocks come from.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:block_metadata;
import :block;
import :std;

namespace gpumem::detail {

/// Block records, numbered by where they lie: side by side in addresses that are reserved at first, and become memory
/// as it is needed. They stay while the pool lives, so a record may be looked at by a thread that comes too late.
/// Guarded by the lock of the pool that keeps them, but for `at`.
export class block_metadata {
public:
  /// Numbers have so many bits, and none is below the first: sixteen million records.
  static constexpr unsigned number_bits = 24;
  static constexpr std::uint32_t first_number = 2;

  block_metadata() = default;
  block_metadata(block_metadata const&) = delete;
  block_metadata& operator=(block_metadata const&) = delete;
  ~block_metadata();

  /// Makes sure that so many can be taken. Throws std::bad_alloc, also where there are no more numbers or addresses.
  inline void reserve(std::size_t count) {
    while (spare_count_ < count) [[unlikely]]
      grow();
  }
  /// One that was reserved; without uses, on no free list.
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
  /// The record of that number. Any thread that has seen what was written after it was taken.
  inline block& at(std::uint32_t number) const noexcept { return base_[number]; }

private:
  void grow();
  void reserve_addresses();
  void add_memory();

  block* base_ = nullptr;
  void* reserved_ = nullptr;
  // Not beside what other threads read when they look for a block.
  alignas(64) std::size_t next_ = first_number; // number that has no record yet
  std::size_t backed_ = 0;                      // numbers that have memory
  std::size_t end_ = 0;                         // that have an address
  block* spare_ = nullptr;
  std::size_t spare_count_ = 0;
};

} // namespace gpumem::detail
