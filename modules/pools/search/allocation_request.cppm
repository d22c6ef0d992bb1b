// A request for memory inside a pool, and the place in a free range that is found for it.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:allocation_request;
import :block;
import :pool_shard;
import :reuse_rules;
import :std;
import :stream;

namespace gpumem::detail {

/// Where a borrower wants pages of the pool.
export struct loan_terms {
  address_range* into;               ///< of the borrower
  std::optional<std::size_t> offset; ///< where to map them; none: in a hole, or after the mapped addresses of `into`
  std::size_t page;                  ///< the size of the pages; 0: virtual_pages chooses it
};

/// A checked and rounded-up request of one stream. Only the calling thread uses it, during its call.
export struct allocation_request {
  stream_key const& key;
  std::size_t requested;
  std::size_t bytes;         // rounded up
  std::uint8_t class_number; // number of the size class; size_class::count if `bytes` is the size of no class
  std::size_t alignment;
  unsigned thread;                  // the calling thread's number
  pool_shard* shard = nullptr;      // the calling thread's part of the pool
  bool growth_failed = false;       // the pool could not grow for this request
  loan_terms const* loan = nullptr; // of a request that only new pages can serve; null: a request for a block

  /// Called because memory is short: rounds a medium size up only to a multiple of 256 bytes, as large sizes are. A
  /// small size does not change. `smallest`: bytes of the smallest block of the pool.
  inline void drop_rounding(std::size_t smallest) noexcept {
    if (bytes <= size_class::largest_small || loan) return;
    auto const exact = size_class::of(std::max(requested, smallest), size_class::largest_small);
    bytes = exact.bytes;
    class_number = exact.number;
  }
  /// Returns whether the request waits in the pool's queue if it is refused, so that its thread must not wait now.
  inline bool can_park() const noexcept { return key.queues() != queueing::none && !key.may_wait(); }
  inline bool is_small() const noexcept { return bytes <= size_class::largest_small && alignment == granule; }
};

/// A free range, the offset of the block in the range, and the reuse tier. Empty if no range was found. Two words, so
/// that functions return a placement in registers. A copy in memory would be written by fields and read by words, which
/// stalls the processor.
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
