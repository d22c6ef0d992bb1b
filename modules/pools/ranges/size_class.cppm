// The size classes to which requests are rounded up.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:size_class;
import :block;
import :std;

namespace gpumem::detail {

/// The size of a block, and the number of its class. Up to 4 KiB, and for large blocks, every multiple of 256 bytes is
/// a size. Between these, each power of two has eight sizes. So above 2 KiB, rounding wastes at most an eighth of a
/// block. The code has no branches, because the processor would mispredict them for random sizes.
export struct size_class {
  static constexpr std::size_t largest_small = std::size_t{64} << 10;
  static constexpr std::size_t largest_medium = std::size_t{1} << 20;
  static constexpr unsigned small_count = 48;
  static constexpr unsigned count = 80; ///< number of small and medium classes

  /// The kinds of sizes: a pool bounds the bytes that its thread caches hold of each kind.
  enum kind : std::uint8_t { small, medium, large };
  static constexpr std::size_t kinds = 3;
  /// Returns the kind, small or medium, of a size that has a class number.
  static inline kind kind_of(std::size_t bytes) noexcept { return bytes <= largest_small ? small : medium; }

  std::size_t bytes;
  std::uint8_t number; ///< class number; `count` if the size has none

  /// Returns the size of the block for a request of at least one byte. Sizes up to `largest` have class numbers.
  static inline size_class of(std::size_t requested, std::size_t largest = largest_medium) noexcept {
    bool const numbered = requested <= largest;
    auto const fine = unit_log2_of(requested);
    auto const unit_log2 = __builtin_expect_with_probability(numbered, true, .5) ? fine : granule_log2;
    auto const steps = (requested - 1) >> unit_log2;
    auto const own = number_of(steps, fine);
    auto const number = __builtin_expect_with_probability(numbered, true, .5) ? own : count;
    return {(steps + 1) << unit_log2, static_cast<std::uint8_t>(number)};
  }
  inline bool is_small() const noexcept { return number < small_count; }
  inline bool is_numbered() const noexcept { return number < count; }
  /// Returns the class number of a small size.
  static inline unsigned number_of_small(std::size_t bytes) noexcept {
    auto const unit_log2 = unit_log2_of(bytes);
    return static_cast<unsigned>(number_of((bytes - 1) >> unit_log2, unit_log2));
  }

private:
  static constexpr unsigned granule_log2 = 8;
  static_assert(granule == 1u << granule_log2);
  static constexpr unsigned steps_log2 = 3;

  // Returns the binary logarithm of the step between the sizes near this one. The step is a sixteenth of the next power
  // of two, and at least a granule.
  static inline unsigned unit_log2_of(std::size_t bytes) noexcept {
    constexpr std::size_t least = granule << steps_log2;
    return static_cast<unsigned>(std::bit_width((bytes - 1) | least)) - steps_log2 - 1;
  }
  static inline std::size_t number_of(std::size_t steps, unsigned unit_log2) noexcept {
    return ((std::size_t{unit_log2} - granule_log2) << steps_log2) + steps;
  }
};

} // namespace gpumem::detail
