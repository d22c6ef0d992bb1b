// The events that frees record on their streams.
// SPDX-License-Identifier: Apache-2.0
export module gpumem:free_events;
import :block;
import :pool_mode;
import :pool_parts;
import :pool_shard;
import :shard_roles;
import :std;
import :stream;
import :stream_timeline;

namespace gpumem::detail {

/// Decides which frees of a pool record an event. The event shows other streams and the host when the work on the block
/// is complete. It is recorded only if the call may use the stream's handle: the caller has passed it, or the stream's
/// owner keeps the stream alive.
export class free_events {
public:
  explicit free_events(pool_parts& parts) noexcept : parts_{parts} {}

  /// Records an event for a free if another stream or the host may soon want memory. `use`: the stream of the free and
  /// its present epoch. `bytes`: the size of the block. Returns the use with the epoch of the event, or `use` itself if
  /// none was recorded. The caller holds the lock of `in`, the block's shard.
  [[clang::requires_capability(one_shard),
    clang::requires_shared_capability(all_shards)]] [[gnu::always_inline]] inline stream_use
  record_if_due(stream_key const& key, stream_use const& use, std::size_t bytes, pool_shard& in) noexcept {
    bool const many = parts_.mode.multi_stream() && passes_threshold(*use.timeline, bytes, in);
    return many || use.timeline->event_request().raised() || parts_.mode.under_pressure() ? record(key, use) : use;
  }
  /// Records an event on the stream of the use, and returns the use with the epoch of the event. Records none, and
  /// returns `use` itself, in three cases: if the call has no handle of the stream, if memory stays with its stream
  /// (reuse_policy::ordered), and on an error.
  stream_use record(stream_key const& key, stream_use const& use) noexcept;

private:
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] bool
  passes_threshold(stream_timeline& timeline, std::size_t bytes, pool_shard& in) noexcept;

  pool_parts& parts_;
};

} // namespace gpumem::detail
