// The ladder: where in a pool's free memory a request finds its place, by the cheapest rung.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/pool_options.hpp>
export module gpumem:pool_ladder;
import :block;
import :chunks;
import :page_growth;
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
  pool_ladder(reuse furthest, chunk_list const& chunks, page_growth const& growth, pool_order const& order) noexcept
      : furthest_{furthest}, chunks_{chunks}, growth_{growth}, order_{order} {}

  /// By the rungs that cost the stream nothing, as things are known; one look at what has completed where something
  /// better may come of it. Throws std::bad_alloc.
  [[gnu::always_inline]] inline pool_place known(pool_request const& what, shard_span among) const {
    auto const place = at_once(what, among);
    if (!place) [[unlikely]]
      return left_by_others(what, among);
    return fits_loosely(what, place) ? better(what, place, among) : place;
  }
  /// The same, and after one look at what has completed where nothing is known. Throws std::bad_alloc.
  pool_place find(pool_request const& what, shard_span among) const;
  /// What streams still use, behind a wait on precise evidence that was enqueued. Empty also on an error of the driver.
  pool_place behind_wait(pool_request const& what, shard_span among) const;

private:
  // A range of more than so many times what was asked for fits loosely: on a recorded trace of six streams looking
  // further then raised what was in use of what was reserved from a half to three quarters.
  static constexpr std::size_t loose = 2;

  // Of what the stream itself has freed and of what nobody uses, whichever fits better; the stream's own where memory
  // is spent.
  [[gnu::always_inline]] inline pool_place at_once(pool_request const& what, shelves& all) const {
    auto* const own = order_.by_host(what.key) ? nullptr : all.find(what.key.order());
    if (what.is_small()) {
      if (auto* const spare = own ? own->spans().last(what.bytes) : nullptr) return {spare, 0, rung::own};
      if (auto* const spare = all.common().spans().last(what.bytes)) return {spare, 0, rung::completed};
    }
    std::size_t own_offset = 0, offset = 0;
    auto* const mine = own ? own->bins().find(what.bytes, what.alignment, own_offset) : nullptr;
    bool const good = mine && (mine->bytes == what.bytes || growth_.is_generous(*what.own));
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
  // Near the limit everything but a good fit is too much, and where pages are moved for what lacks memory.
  [[gnu::always_inline]] inline bool fits_loosely(pool_request const& what, pool_place place) const noexcept {
    if (what.own->ranges.by_order().own().size() <= 1) return false;
    return (chunks_.scarce() || growth_.is_compact() ? place.range->bytes : place.range->bytes / loose) > what.bytes;
  }
  pool_place better(pool_request const& what, pool_place place, shard_span among) const;
  bool others_fit_better(pool_request const& what, pool_place place, shard_span among) const;
  bool completion_found(pool_request const& what, shard_span among) const;
  pool_place elsewhere(pool_request const& what, rung furthest, shard_span among) const;
  pool_place left_by_others(pool_request const& what, shard_span among) const;
  pool_place learnt(pool_request const& what, shard_span among) const;

  reuse const furthest_;
  chunk_list const& chunks_;
  page_growth const& growth_;
  pool_order const& order_;
};

} // namespace gpumem::detail
