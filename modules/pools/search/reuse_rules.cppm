// The order of a pool's free memory: which stream may use which range when, and how more is learnt of it.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:reuse_rules;
import :pool_options;
import :pool_shard;
import :std;
import :stream;
import :stream_timeline;
import :stream_uses;

namespace gpumem::detail {

/// How a stream may come to use a free range, the cheapest first.
export enum class reuse_tier : std::uint8_t { same_stream, ordered, completed, wait, none };

/// The rules of one pool. Each call is under the locks of the shards that it is given, or of those that its uses lie
/// in; on streams it makes driver calls, and waits for nothing.
export class reuse_rules {
public:
  /// `policy`: how far reuse across streams may go. `host_accessible`: the host may touch the memory at once.
  reuse_rules(reuse_policy policy, bool host_accessible) noexcept
      : cross_stream_{policy != reuse_policy::ordered}, host_accessible_{host_accessible} {}

  /// The host may touch the memory at once.
  inline bool host_accessible() const noexcept { return host_accessible_; }
  /// Whether a request needs memory of which the host has seen every use complete.
  inline bool needs_host(stream_key const& key) const noexcept { return key.is_host() || host_accessible_; }
  /// The first tier, `furthest` at most, by which the stream may use memory with these uses, or none.
  reuse_tier classify(stream_uses const& uses, stream_key const& key, reuse_tier last_tier) const;

  /// Drops uses that the host has seen complete; with `reuse_policy::ordered` memory stays with the streams that freed
  /// it.
  void prune(stream_uses& uses) const noexcept {
    if (cross_stream_) uses.prune();
  }
  /// What the host has seen complete belongs to nobody from now on, and joins what belongs to nobody. Whether there was
  /// any.
  bool promote_completed(shard_span among) const noexcept;
  /// Joins free neighbours that the stream may use by these tiers. Across streams this is for a request that would else
  /// fail: a range joined early is lost to each of its streams until the others are done.
  void coalesce_usable(stream_key const& key, reuse_tier last_tier, shard_span among) const;

  /// One poll of every stream whose frees stand in the way; returns their number. Where there is no events yet it is
  /// recorded, late, on streams that are gpumem's or the asking one; the others are asked for it. Throws
  /// std::bad_alloc.
  std::size_t poll_streams(stream_key const* asking, shard_span among) const;
  /// The same of all streams, the asking one too. Unless the asking stream is behind, young events are polled
  /// for 4 us: a stream without work completes one in 2 us, which is little beside a move of pages. Throws
  /// std::bad_alloc.
  void poll_streams_for_moves(stream_key const& asking, shard_span among) const;
  /// The streams whose uses of free memory the host has not seen complete, each once. Throws std::bad_alloc.
  static std::vector<stream_timeline*> streams_in_use(bool without_event, shard_span among);

  /// Whether some use of free memory is open of which polling can show that it is complete.
  static bool may_complete(shard_span among) noexcept;

  /// Orders the stream after every use that it is not ordered after. False on an error of the driver.
  static bool wait_for(stream_uses const& uses, stream_key const& key);

private:
  bool cross_stream_; // across streams
  bool host_accessible_;
};

} // namespace gpumem::detail
