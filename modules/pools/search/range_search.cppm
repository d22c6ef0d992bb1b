// A request for memory inside a pool, the search of a free range for it by reuse tiers, and the result of an attempt.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
#include <cstdint>
export module gpumem:range_search;
import :block;
import :error;
import :free_lists;
import :pool_options;
import :pool_shard;
import :range_allocator;
import :reuse_rules;
import :shard_roles;
import :std;
import :stream;
import :stream_timeline;

namespace gpumem::detail {

/// A value, a failure, or neither. If neither, other threads have changed the pool meanwhile, and the caller must
/// search again.
export template <class T> class attempt {
public:
  static attempt retry() noexcept { return {state::retry, {}, {}}; }
  attempt(T result) noexcept : attempt{state::done, result, {}} {}
  attempt(unexpected<failure> const& failure) noexcept : attempt{state::failed, {}, failure.error()} {}

  inline bool is_done() const noexcept { return state_ == state::done; }
  inline bool must_retry() const noexcept { return state_ == state::retry; }
  inline bool has_failed() const noexcept { return state_ == state::failed; }
  /// Called only if is_done().
  inline T value() const noexcept { return value_; }
  /// Called only if has_failed().
  inline failure const& error() const noexcept { return failure_; }

private:
  enum class state : std::uint8_t { done, retry, failed };
  attempt(state state, T result, failure const& failure) noexcept : state_{state}, value_{result}, failure_{failure} {}

  state state_;
  T value_;
  failure failure_;
};

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
  pool_shard* shard = nullptr;      // the calling thread's
  bool growth_failed = false;       // the pool could not grow for this request
  loan_terms const* loan = nullptr; // of a request that no search serves; null: a request for a block

  /// Called because memory is short: rounds a medium size up only to a multiple of 256 bytes, as large sizes are. A
  /// small size does not change. `smallest`: bytes of the smallest block of the pool.
  inline void drop_rounding(std::size_t smallest) noexcept {
    if (bytes <= size_class::largest_small || loan) return;
    auto const exact = size_class::of(std::max(requested, smallest), size_class::largest_small);
    bytes = exact.bytes;
    class_number = exact.number;
  }
  /// Returns whether the request waits in the pool's queue if it is refused, so that its thread must not wait now.
  inline bool can_park() const noexcept {
    return key.context().queues() != queueing::none && !key.context().may_wait();
  }
  inline bool is_small() const noexcept { return bytes <= size_class::largest_small && alignment == granule; }
};

/// A free range, the offset of the block in the range, and the reuse tier. Empty if no range was found. Two words, so
/// that functions return a placement in registers. A copy in memory would be written by fields and read by words, which
/// stalls the processor.
export struct placement {
  placement() = default;
  placement(block* range, std::size_t offset, reuse_tier tier) noexcept
      : range{range}, offset{offset & max_offset}, how{tier} {}
  inline explicit operator bool() const noexcept { return range != nullptr; }

  static constexpr std::size_t max_offset = (std::size_t{1} << 56) - 1; // addresses have no more bits
  block* range = nullptr;
  std::size_t offset : 56 = 0;
  reuse_tier how : 8 = reuse_tier::none;
};
static_assert(sizeof(placement) == 2 * sizeof(void*));

/// Finds a place for a request in the free ranges of shards. Leaves the range on its free list. Each search returns an
/// empty placement if there is no such place. Searches may poll streams, join free neighbours, and make ranges ready.
/// The caller holds the locks of the shards that it passes. Searches make driver calls on streams, but do not wait on
/// the host.
export class range_search {
public:
  /// Keeps a reference to `rules`. `policy`: which memory of other streams may be reused.
  range_search(reuse_policy policy, reuse_rules& rules) noexcept : policy_{policy}, rules_{rules} {}

  /// Searches the ranges that the stream may use without a wait. Polls no events: uses that the host has not yet seen
  /// complete count as open.
  [[gnu::always_inline]] GPUMEM_REQUIRES(one_shard) GPUMEM_REQUIRES_SHARED(all_shards) inline placement
      find_without_poll(allocation_request const& request, shard_span shards) {
    auto const place = find_own_or_ready(request, shards);
    return place ? place : find_ordered(request, shards);
  }
  /// Searches the ranges that find_without_poll() searches. If none fits, polls the streams once and searches again,
  /// unless the pool can grow and polls have used up their share of the time. Throws std::bad_alloc.
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards) placement find(allocation_request const& request, shard_span shards);
  /// Searches also the ranges that other streams still use, and makes the request's stream wait for the events of these
  /// uses. Finds nothing if the policy forbids such waits, or on an error of the driver.
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards) placement find_with_wait(allocation_request const& request, shard_span shards);

private:
  // Returns the smaller fitting range among those that the stream itself has freed and those that no stream uses. A
  // stream that is behind (an event is open for 5 us or more) prefers its own ranges. Other streams cannot use those
  // yet, so the stream leaves them the ready ranges, which any stream can use.
  [[gnu::always_inline]] GPUMEM_REQUIRES(one_shard) GPUMEM_REQUIRES_SHARED(all_shards) inline placement
      find_own_or_ready(allocation_request const& request, free_lists& lists) {
    auto* const own_list = rules_.needs_host(request.key) ? nullptr : lists.find(request.key.identity().timeline());
    if (request.is_small()) {
      if (auto* const spare = own_list ? own_list->quick().head(request.bytes) : nullptr)
        return {spare, 0, reuse_tier::same_stream};
      if (auto* const spare = lists.ready().quick().head(request.bytes)) return {spare, 0, reuse_tier::completed};
    }
    std::size_t own_offset = 0, offset = 0;
    auto* const mine = own_list ? own_list->bins().find(request.bytes, request.alignment, own_offset) : nullptr;
    bool const good = mine && (mine->bytes == request.bytes || request.key.identity().timeline().is_behind());
    if (good || lists.ready().empty()) return {mine, own_offset, reuse_tier::same_stream};
    auto* const free = lists.ready().bins().find(request.bytes, request.alignment, offset);
    if (free && (!mine || free->bytes < mine->bytes)) return {free, offset, reuse_tier::completed};
    return {mine, own_offset, reuse_tier::same_stream};
  }
  [[gnu::always_inline]] GPUMEM_REQUIRES(one_shard) GPUMEM_REQUIRES_SHARED(all_shards) inline placement
      find_own_or_ready(allocation_request const& request, shard_span shards) {
    for (auto* const each : shards) {
      if (auto const place = find_own_or_ready(request, each->ranges.lists())) [[likely]]
        return place;
    }
    return {};
  }
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards)
  placement find_cross_stream(allocation_request const& request, reuse_tier last_tier, shard_span shards);
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards) placement find_ordered(allocation_request const& request, shard_span shards);
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards) placement find_after_poll(allocation_request const& request, shard_span shards);

  reuse_policy const policy_;
  reuse_rules& rules_;
};

} // namespace gpumem::detail
