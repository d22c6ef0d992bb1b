// Small blocks: a few sizes, cut side by side, and kept as they are when they are freed.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:spans;
import :block;
import :std;

namespace gpumem::detail {

/// The sizes of small blocks: multiples of 256 bytes up to 4 KiB, from there eight to each power of two up to 64 KiB.
/// An eighth of a block at most was not asked for.
export class small_sizes {
public:
  static constexpr std::size_t largest = std::size_t{64} << 10;
  static constexpr unsigned count = 48;

  /// What a request is rounded up to: one of these sizes, or whole granules.
  static inline std::size_t round_up(std::size_t bytes) noexcept {
    auto const unit = std::size_t{1} << (bytes > largest ? granule_log2 : unit_log2_of(bytes));
    return (bytes + unit - 1) & ~(unit - 1);
  }
  /// The number of one of these sizes.
  static inline unsigned index_of(std::size_t bytes) noexcept {
    auto const unit_log2 = unit_log2_of(bytes);
    return (unit_log2 - granule_log2) * steps + static_cast<unsigned>((bytes - 1) >> unit_log2);
  }

private:
  static constexpr unsigned granule_log2 = 8;
  static_assert(granule == 1u << granule_log2);
  static constexpr unsigned steps_log2 = 3;
  static constexpr unsigned steps = 1u << steps_log2;
  // What sizes near this one are multiples of: a sixteenth of the power of two above, or a granule. Without a branch,
  // as sizes follow each other at random.
  static inline unsigned unit_log2_of(std::size_t bytes) noexcept {
    constexpr unsigned least = granule_log2 + steps_log2 + 1;
    return std::max(static_cast<unsigned>(std::bit_width(bytes - 1)), least) - steps_log2 - 1;
  }
};

/// Freed small blocks of the same order, by size, the last one first. They join no neighbours before `take_all`: most
/// are wanted again, and while they are apart neither their freeing nor their granting touches anything else. Quick Fit
/// (Weinstock and Wulf 1988). Guarded by the lock of the pool that keeps it.
export class spans {
public:
  inline block* last(std::size_t bytes) const noexcept { return last_[small_sizes::index_of(bytes)]; }
  inline bool empty() const noexcept { return bytes_ == 0; }
  inline std::size_t bytes() const noexcept { return bytes_; }

  /// How many more of a size it takes.
  inline std::size_t room(std::size_t bytes) const noexcept { return most - counts_[small_sizes::index_of(bytes)]; }
  /// False: there are enough of its size. A stream that only frees has them for nobody.
  inline bool put(block& freed) noexcept {
    auto const size = small_sizes::index_of(freed.bytes);
    if (counts_[size] >= most) return false;
    ++counts_[size];
    freed.next = last_[size];
    last_[size] = &freed;
    bytes_ += freed.bytes;
    freed.become(block_state::spare);
    return true;
  }
  /// The last of its size.
  inline void take(block& spare) noexcept {
    auto const size = small_sizes::index_of(spare.bytes);
    --counts_[size];
    last_[size] = spare.next;
    bytes_ -= spare.bytes;
    spare.become(block_state::granted);
  }
  /// All of them, in front of others that are linked by `next`.
  block* take_all(block* before) noexcept;

  template <class Visit> void visit(Visit visitor) const {
    if (empty()) return;
    for (auto const* last : last_) {
      for (; last; last = last->next) visitor(*last);
    }
  }

private:
  static constexpr std::size_t most = 64;
  std::array<block*, small_sizes::count> last_{};
  std::array<std::uint16_t, small_sizes::count> counts_{};
  std::size_t bytes_ = 0;
};

} // namespace gpumem::detail
