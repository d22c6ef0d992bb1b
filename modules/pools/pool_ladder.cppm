// The ladder: where in a pool's free memory a request finds its place, by the cheapest rung.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
export module gpumem:pool_ladder;
import :block;
import :pool_order;
import :pool_request;
import :ranges;
import :shards;
import :shelf;
import :std;
import :stream;
import :timeline;

namespace gpumem::detail {

/// Finds what a stream may have, and leaves it where it is: an empty place where there is nothing. On its way it learns
/// what has completed, and joins what nobody uses. Each call is under the locks of the shards that it is given; on
/// streams it makes driver calls, and waits for nothing.
export class pool_ladder {
public:
  /// Refers to all of them. `furthest`: how far reuse across streams may go.
  pool_ladder(reuse furthest, pool_order const& order) noexcept : furthest_{furthest}, order_{order} {}

  /// By the rungs that cost the stream nothing, as things are known.
  [[gnu::always_inline]] inline pool_place known(pool_request const& what, shard_span among) const {
    auto const place = at_once(what, among);
    return place ? place : left_by_others(what, among);
  }
  /// The same, and after one look at what has completed where nothing is known. Throws std::bad_alloc.
  pool_place find(pool_request const& what, shard_span among) const;
  /// What streams still use, behind a wait on precise evidence that was enqueued. Empty also on an error of the driver.
  pool_place behind_wait(pool_request const& what, shard_span among) const;

private:
  // Returns the better fit of the stream's own free memory and of memory that no stream uses. A stream that is behind
  // takes its own first: the other streams cannot use that, and would have to grow.
  [[gnu::always_inline]] inline pool_place at_once(pool_request const& what, shelves& all) const {
    auto* const own = order_.by_host(what.key) ? nullptr : all.find(what.key.order());
    if (what.is_small()) {
      if (auto* const spare = own ? own->spans().last(what.bytes) : nullptr) return {spare, 0, rung::own};
      if (auto* const spare = all.common().spans().last(what.bytes)) return {spare, 0, rung::completed};
    }
    std::size_t own_offset = 0, offset = 0;
    auto* const mine = own ? own->bins().find(what.bytes, what.alignment, own_offset) : nullptr;
    bool const good = mine && (mine->bytes == what.bytes || what.key.order().is_behind());
    if (good || all.common().empty()) return {mine, own_offset, rung::own};
    auto* const free = all.common().bins().find(what.bytes, what.alignment, offset);
    if (free && (!mine || free->bytes < mine->bytes)) return {free, offset, rung::completed};
    return {mine, own_offset, rung::own};
  }
  [[gnu::always_inline]] inline pool_place at_once(pool_request const& what, shard_span among) const {
    for (auto* const each : among) {
      if (auto const place = at_once(what, each->ranges.by_order())) [[likely]]
        return place;
    }
    return {};
  }
  pool_place elsewhere(pool_request const& what, rung furthest, shard_span among) const;
  pool_place left_by_others(pool_request const& what, shard_span among) const;
  pool_place learnt(pool_request const& what, shard_span among) const;

  reuse const furthest_;
  pool_order const& order_;
};

} // namespace gpumem::detail
