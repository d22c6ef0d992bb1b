// The rules by which a stream may reuse free memory, the polls that tell which uses are complete, and a wait on the
// host for them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/lock_attributes.hpp>
export module gpumem:reuse_rules;
import :block;
import :pool_options;
import :pool_shard;
import :shard_roles;
import :std;
import :stream;
import :stream_timeline;
import :sync;

namespace gpumem::detail {

/// How a stream may get a free range, the cheapest tier first. `same_stream`: only the stream itself has used it.
/// `ordered`: the stream's work comes after all uses. `completed`: the host has seen all uses complete. `wait`: the
/// stream first waits for the uses. `none`: not at all.
export enum class reuse_tier : std::uint8_t { same_stream, ordered, completed, wait, none };

/// The rules of one pool. A use of free memory is open until the host has seen it complete. The caller holds the locks
/// of the shards that it passes, or of the shard in which the uses lie. Calls may make driver calls on streams, but
/// wait for nothing.
export class reuse_rules {
public:
  /// `policy`: which memory of other streams may be reused. `host_accessible`: the host may touch memory as soon as it
  /// is allocated.
  reuse_rules(reuse_policy policy, bool host_accessible) noexcept
      : cross_stream_{policy != reuse_policy::ordered}, host_accessible_{host_accessible} {}

  /// Returns whether the host may touch memory as soon as it is allocated.
  inline bool host_accessible() const noexcept { return host_accessible_; }
  /// Returns whether the request of `key` may get only memory of which the host has seen every use complete.
  inline bool needs_host(stream_key const& key) const noexcept { return key.identity().is_host() || host_accessible_; }
  /// Returns the cheapest tier, up to `last_tier`, by which the stream may take memory that has these uses; `none` if
  /// there is no such tier.
  reuse_tier classify(stream_uses const& uses, stream_key const& key, reuse_tier last_tier) const;

  /// Drops uses that the host has seen complete. Does nothing with `reuse_policy::ordered`, where memory stays with the
  /// streams that freed it.
  void prune(stream_uses& uses) const noexcept {
    if (cross_stream_) uses.prune();
  }
  /// Promotes ranges, which then coalesce with ready neighbours. Returns whether any range was promoted.
  GPUMEM_REQUIRES(one_shard) GPUMEM_REQUIRES_SHARED(all_shards) bool promote_completed(shard_span shards) noexcept;
  /// Joins free neighbours that the stream may use by tiers up to `last_tier`. Neighbours with open uses by different
  /// streams are joined only for a request that would fail otherwise: afterwards each of these streams must wait for
  /// the others.
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards)
  void coalesce_usable(stream_key const& key, reuse_tier last_tier, shard_span shards);

  /// Polls every stream with open uses of free memory once, and returns the number of these streams. `asking`: the key
  /// of the request for which this polls, or null. If no event covers a use, records one now on a stream that gpumem
  /// made or adopted. For host-accessible memory, also records one on the asking stream. On any other stream the next
  /// free records an event. With `reuse_policy::ordered` polls help only requests that need the host to see uses
  /// complete; for other requests does nothing and returns 0. Throws std::bad_alloc.
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards) std::size_t poll_streams(stream_key const* asking, shard_span shards);
  /// Polls every stream with open uses, whatever the policy. Then repeats the polls for up to 4 us, because a stream
  /// without work completes an event within 2 us. Repeats no poll of a stream that is behind (an event is open for 5 us
  /// or more), and none at all if the asking stream is behind. For callers whose next step costs far more than 4 us.
  /// Throws std::bad_alloc.
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards) void poll_young_events(stream_key const* asking, shard_span shards);
  /// Returns the streams with uses of free memory that the host has not seen complete, each stream once. If
  /// `without_event`, returns only streams with such a use after which no event was recorded. Throws std::bad_alloc.
  GPUMEM_REQUIRES(one_shard)
  GPUMEM_REQUIRES_SHARED(all_shards)
  static std::vector<stream_timeline*> streams_in_use(bool without_event, shard_span shards);

  /// Returns whether polling can show that an open use of free memory is complete.
  GPUMEM_REQUIRES(one_shard) GPUMEM_REQUIRES_SHARED(all_shards) static bool may_complete(shard_span shards) noexcept;

  /// Makes the stream of `key` wait for every use that is not yet ordered before the stream's next work. Returns false
  /// on an error of the driver, or if a use has no event to wait for.
  static bool wait_for(stream_uses const& uses, stream_key const& key);

private:
  bool cross_stream_; // a stream may reuse memory of another stream once that stream's uses are complete
  bool host_accessible_;
};

/// Polls for at most `longest`, until all uses of memory that was freed on the streams before the call are complete.
/// Returns false if the time has passed, on a lost device, or if no event covers some of these uses. Records missing
/// events on streams that gpumem made or adopted. The caller holds no lock.
export bool wait_for_streams(std::vector<stream_timeline*> const& timelines, sync::duration longest) noexcept;

} // namespace gpumem::detail
