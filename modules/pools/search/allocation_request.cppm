// A request on its way through a pool, and what is found for it.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:allocation_request;
import :block;
import :pool_shard;
import :reuse_rules;
import :size_class;
import :std;
import :stream;

namespace gpumem::detail {

/// Of one stream, checked and rounded up. One thread's, for the time of its call.
export struct allocation_request {
  stream_key const& key;
  std::size_t requested;
  std::size_t bytes;         // rounded up
  std::uint8_t class_number; // of thread caches, if that size has a number
  std::size_t alignment;
  unsigned thread;             // the calling thread's number
  pool_shard* shard = nullptr; // the calling thread's
  bool growth_failed = false;  // as was found

  /// Where there is not so much: a medium size as if it were large.
  inline void drop_rounding() noexcept {
    if (bytes <= size_class::largest_small) return;
    auto const exact = size_class::of(requested, size_class::largest_small);
    bytes = exact.bytes;
    class_number = exact.number;
  }
  inline bool is_small() const noexcept { return bytes <= size_class::largest_small && alignment == granule; }
};

/// Where in which free range, and by which tier it is the stream's; or nowhere. Two words, so that it comes in
/// registers: what was just written field by field and is then copied word by word stalls.
export struct placement {
  placement() = default;
  placement(block* in, std::size_t at, reuse_tier by) noexcept : range{in}, offset{at & max_offset}, how{by} {}
  inline explicit operator bool() const noexcept { return range != nullptr; }

  static constexpr std::size_t max_offset = (std::size_t{1} << 56) - 1; // addresses have no more bits
  block* range = nullptr;
  std::size_t offset : 56 = 0;
  reuse_tier how : 8 = reuse_tier::none;
};
static_assert(sizeof(placement) == 2 * sizeof(void*));

} // namespace gpumem::detail
