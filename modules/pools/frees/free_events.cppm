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
import :stream_uses;

namespace gpumem::detail {

/// Decides which frees of a pool record an event. An event tells other streams and the host when the block's use is
/// complete. Events are recorded only on a stream that the caller has passed, or that is gpumem's own.
export class free_events {
public:
  explicit free_events(pool_parts& parts) noexcept : parts_{parts} {}

  /// Returns the use that `use` becomes: later, if the free of these bytes records an event. A free does if another
  /// stream or the host may soon want the memory. The caller holds the lock of the shard.
  [[clang::requires_capability(one_shard),
    clang::requires_shared_capability(all_shards)]] [[gnu::always_inline]] inline stream_use
  record_if_due(stream_key const& key, stream_use const& use, std::size_t bytes, pool_shard& in) noexcept {
    bool const many = parts_.mode.multi_stream() && passes_threshold(*use.timeline, bytes, in);
    return many || use.timeline->event_request().raised() || parts_.mode.under_pressure() ? record(key, use) : use;
  }
  /// Records an event, if the stream's handle may be used and another stream may get the memory.
  stream_use record(stream_key const& key, stream_use const& use) noexcept;

private:
  [[clang::requires_capability(one_shard), clang::requires_shared_capability(all_shards)]] bool
  passes_threshold(stream_timeline& timeline, std::size_t bytes, pool_shard& in) noexcept;

  pool_parts& parts_;
};

} // namespace gpumem::detail
