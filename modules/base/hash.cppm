// A hash function that spreads keys over tables.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:hash;
import :std;

namespace gpumem::detail {

/// Multiplicative hashing (Knuth, The Art of Computer Programming, volume 3, 6.4). Tables use the upper bits of the
/// result, in which similar keys differ most.
export constexpr std::uint64_t fibonacci_hash(std::uint64_t key) noexcept { return key * 0x9e3779b97f4a7c15u; }

} // namespace gpumem::detail
