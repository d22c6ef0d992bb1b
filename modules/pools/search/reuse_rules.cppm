// The rules by which a stream may reuse free memory, and the polls that tell a pool which uses are complete.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:reuse_rules;
import :pool_options;
import :pool_shard;
import :shard_roles;
import :std;
import :stream;
import :stream_timeline;
import :stream_uses;

namespace gpumem::detail {

/// How a stream may get a free range, the cheapest tier first.
export enum class reuse_tier : std::uint8_t { same_stream, ordered, completed, wait, none };

/// The rules of one pool. The caller holds the locks of the shards that it passes, or of the shard in which the uses
/// lie. Calls may make driver calls on streams, but wait for nothing.
export class reuse_rules {
public:
  /// `policy`: how far reuse across streams may go. `host_accessible`: the host may touch the memory at once.
  reuse_rules(reuse_policy policy, bool host_accessible) noexcept
      : cross_stream_{policy != reuse_policy::ordered}, host_accessible_{host_accessible} {}

  /// The host may touch the memory at once.
  inline bool host_accessible() const noexcept { return host_accessible_; }
  /// Whether a request needs memory of which the host has seen every use complete.
  inline bool needs_host(stream_key const& key) const noexcept { return key.is_host() || host_accessible_; }
  /// Returns the cheapest tier, up to `last_tier`, by which the stream may use memory with these uses; `none` if no
  /// such tier does.
  reuse_tier classify(stream_uses const& uses, stream_key const& key, reuse_tier last_tier) const;

  /// Drops uses that the host has seen complete. Does nothing with `reuse_policy::ordered`, where memory stays with the
  /// streams that freed it.
  void prune(stream_uses& uses) const noexcept {
    if (cross_stream_) uses.prune();
  }
  /// Promotes ranges whose uses are complete, and coalesces them with ready neighbours. Returns whether there were any.
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] bool
  promote_completed(shard_span among) noexcept;
  /// Coalesces free neighbours that the stream may use by tiers up to `last_tier`. Across streams this is for a request
  /// that would fail otherwise: none of the streams can use a joined range until the other streams are done.
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] void
  coalesce_usable(stream_key const& key, reuse_tier last_tier, shard_span among);

  /// Polls every stream with incomplete uses of free memory once, and returns their number. Where a use has no event
  /// yet, records one late if the stream is gpumem's own or the asking one; otherwise requests one of the
  /// stream's next free. Throws std::bad_alloc.
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] std::size_t
  poll_streams(stream_key const* asking, shard_span among);
  /// Polls all these streams, the asking one too. Unless the asking stream is behind, repeats the polls of young events
  /// for up to 4 us: a stream without work completes an event in 2 us. For callers whose next step costs far more.
  /// Throws std::bad_alloc.
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] void
  poll_young_events(stream_key const* asking, shard_span among);
  /// Returns the streams whose uses of free memory the host has not seen complete, each once; with `without_event` only
  /// those with a use that no event covers. Throws std::bad_alloc.
  [[clang::requires_capability(one_shard),
    clang::requires_shared_capability(all_shards)]] static std::vector<stream_timeline*>
  streams_in_use(bool without_event, shard_span among);

  /// Returns whether polling can show that an open use of free memory is complete.
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] static bool
  may_complete(shard_span among) noexcept;

  /// Makes the stream wait for every use that it is not ordered after yet. Returns false on an error of the driver.
  static bool wait_for(stream_uses const& uses, stream_key const& key);

private:
  bool cross_stream_; // streams may reuse what other streams freed, when it is complete
  bool host_accessible_;
};

} // namespace gpumem::detail
