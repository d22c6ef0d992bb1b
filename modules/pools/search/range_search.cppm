// Finds a free range for a request.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:range_search;
import :allocation_request;
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
  [[clang::requires_capability(one_shard),
    clang::requires_shared_capability(all_shards)]] [[gnu::always_inline]] inline placement
  find_without_poll(allocation_request const& request, shard_span among) {
    auto const place = find_own_or_ready(request, among);
    return place ? place : find_ordered(request, among);
  }
  /// Searches the ranges that find_without_poll() searches. If none fits, polls the streams once and searches again,
  /// unless the pool can grow and polls have used up their share of the time. Throws std::bad_alloc.
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] placement
  find(allocation_request const& request, shard_span among);
  /// Searches also the ranges that other streams still use, and makes the request's stream wait for the events of these
  /// uses. Finds nothing if the policy forbids such waits, or on an error of the driver.
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] placement
  find_with_wait(allocation_request const& request, shard_span among);

private:
  // Returns the smaller fitting range among those that the stream itself has freed and those that no stream uses. A
  // stream that is behind (an event is open for 5 us or more) prefers its own ranges. Other streams cannot use those
  // yet, so the stream leaves them the ready ranges, which any stream can use.
  [[clang::requires_capability(one_shard),
    clang::requires_shared_capability(all_shards)]] [[gnu::always_inline]] inline placement
  find_own_or_ready(allocation_request const& request, free_lists& all) {
    auto* const own = rules_.needs_host(request.key) ? nullptr : all.find(request.key.timeline());
    if (request.is_small()) {
      if (auto* const spare = own ? own->quick().head(request.bytes) : nullptr)
        return {spare, 0, reuse_tier::same_stream};
      if (auto* const spare = all.ready().quick().head(request.bytes)) return {spare, 0, reuse_tier::completed};
    }
    std::size_t own_offset = 0, offset = 0;
    auto* const mine = own ? own->bins().find(request.bytes, request.alignment, own_offset) : nullptr;
    bool const good = mine && (mine->bytes == request.bytes || request.key.timeline().is_behind());
    if (good || all.ready().empty()) return {mine, own_offset, reuse_tier::same_stream};
    auto* const free = all.ready().bins().find(request.bytes, request.alignment, offset);
    if (free && (!mine || free->bytes < mine->bytes)) return {free, offset, reuse_tier::completed};
    return {mine, own_offset, reuse_tier::same_stream};
  }
  [[clang::requires_capability(one_shard),
    clang::requires_shared_capability(all_shards)]] [[gnu::always_inline]] inline placement
  find_own_or_ready(allocation_request const& request, shard_span among) {
    for (auto* const each : among) {
      if (auto const place = find_own_or_ready(request, each->ranges.lists())) [[likely]]
        return place;
    }
    return {};
  }
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] placement
  find_cross_stream(allocation_request const& request, reuse_tier last_tier, shard_span among);
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] placement
  find_ordered(allocation_request const& request, shard_span among);
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] placement
  find_after_poll(allocation_request const& request, shard_span among);

  reuse_policy const policy_;
  reuse_rules& rules_;
};

} // namespace gpumem::detail
