// The order of a pool's free memory: which stream may use which range when, and how more is learnt of it.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
export module gpumem:pool_order;
import :shards;
import :std;
import :stream;
import :tags;
import :timeline;

namespace gpumem::detail {

/// How a stream may come to use a free range, the cheapest first.
export enum class rung : std::uint8_t { own, ordered, completed, wait, none };

/// The rules of one pool. Each call is under the locks of the shards that it is given, or of those that its tags lie
/// in; on streams it makes driver calls, and waits for nothing.
export class pool_order {
public:
  /// `furthest`: how far reuse across streams may go. `host_accessible`: the host may touch the memory at once.
  pool_order(reuse furthest, bool host_accessible) noexcept
      : shares_{furthest != reuse::own}, host_accessible_{host_accessible} {}

  /// The host may touch the memory at once.
  inline bool host_accessible() const noexcept { return host_accessible_; }
  /// Whether a request needs memory of which the host has seen every use complete.
  inline bool by_host(stream_key const& key) const noexcept { return key.is_host() || host_accessible_; }
  /// The first rung, `furthest` at most, by which the stream may use memory with these tags, or none.
  rung classify(tag_set const& tags, stream_key const& key, rung furthest) const;

  /// Drops uses that the host has seen complete; with `reuse::own` memory stays with the streams that freed it.
  void prune(tag_set& tags) const noexcept {
    if (shares_) tags.prune();
  }
  /// What the host has seen complete belongs to nobody from now on, and joins what belongs to nobody. Whether there was
  /// any.
  bool give_completed(shard_span among) const noexcept;
  /// Joins free neighbours that the stream may use by these rungs. Across streams this is for a request that would else
  /// fail: a range joined early is lost to each of its streams until the others are done.
  void join_free(stream_key const& key, rung furthest, shard_span among) const;

  /// One poll of every stream whose frees stand in the way; returns their number. Where there is no evidence yet it is
  /// recorded, late, on streams that are gpumem's or the asking one; the others are asked for it. Throws
  /// std::bad_alloc.
  std::size_t learn_completion(stream_key const* asking, shard_span among) const;
  /// The same of all streams, the asking one too. Unless the asking stream is behind, young events are polled
  /// for 4 us: a stream without work completes one in 2 us, which is little beside a move of pages. Throws
  /// std::bad_alloc.
  void learn_completion_for_moves(stream_key const& asking, shard_span among) const;
  /// The streams whose uses of free memory the host has not seen complete, each once. Throws std::bad_alloc.
  static std::vector<timeline*> open_timelines(bool without_evidence, shard_span among);

  /// Whether some use of free memory is open of which polling can show that it is complete.
  static bool may_complete(shard_span among) noexcept;

  /// Orders the stream after every use that it is not ordered after. False on an error of the driver.
  static bool wait_for(tag_set const& tags, stream_key const& key);

private:
  bool shares_; // across streams
  bool host_accessible_;
};

} // namespace gpumem::detail
