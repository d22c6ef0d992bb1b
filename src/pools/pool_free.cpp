// From live to free, and what callers do wrong. Nothing here allocates host memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
module gpumem:pool_free.impl;
import :pool_engine;
import :pool_order;
import :pool_supply;
import :block;
import :chunks;
import :magazines;
import :misuse;
import :ranges;
import :shards;
import :shelf;
import :stream;
import :sync;
import :tags;
import :timeline;
import :virtual_pages;

namespace gpumem::detail {

// What a magazine put out goes first: the free of the block itself may be the last.
free_result pool_engine::finish(stream_key const& key, void* pointer, std::optional<std::size_t> bytes,
                                near_free const& near) noexcept {
  auto const ended = near.put.out ? end_put_out(*near.put.out) : free_result::done;
  if (near.put.kept) return ended;
  ending const what{key, pointer, bytes, near.use};
  if (near.freed.that) return free_shared(what, near.freed);
  // What lies in another thread's shard goes back there: kept here it would be looked for everywhere ever again. But
  // near the limit a thread may have nothing else, and borrowing stops all of them.
  auto const seen = shards_.granted_at(pointer);
  if (!seen.that || !scarce_.load(std::memory_order_relaxed) || !may_keep(*seen.that, key, bytes)) {
    return free_shared(what, seen);
  }
  auto const put = magazines_.put(*seen.that, near.use, sync::thread_number());
  auto const beside = put.out ? end_put_out(*put.out) : free_result::done;
  return put.kept ? beside : free_shared(what, seen);
}

free_result pool_engine::free_shared(ending const& what, shard_list::found const& seen) noexcept {
  return free_near(what, seen) ? free_result::done : free_outright(what);
}

// Under the lock of the block's shard alone, where nothing calls for all of them; else, and of a misuse, false.
[[gnu::always_inline]] bool pool_engine::free_near(ending const& what, shard_list::found const& seen) noexcept {
  if (!seen.that || what.key.capturing() || magazines_.starved()) [[unlikely]]
    return false;
  auto& home = *seen.shard;
  sync::quick_lock held{home.guard, std::try_to_lock};
  if (!held) {
    if (post_free(what, seen)) return true;
    held = shards_.enter(home);
  }
  auto& freed = *seen.that;
  if (!stays_apart(freed)) freed.fetch_neighbours(); // they are looked at when the rest is done
  bool const right =
      calm_for(*what.use.order) && freed.pointer() == what.pointer && freed.is_live() && what.fits(freed);
  if (right) [[likely]]
    end_live(freed, what, home);
  return right;
}

// Where somebody has the lock, and evidence is of use: what is left to do waits for the next who takes it. Mimalloc's
// lists of thread-delayed frees (Leijen, Zorn, de Moura 2019).
bool pool_engine::post_free(ending const& what, shard_list::found const& seen) noexcept {
  auto const most = magazines_.most_unrecorded();
  if (!seen.that || !may_keep(*seen.that, what.key, what.bytes) || most == SIZE_MAX) return false;
  auto& order = *what.use.order;
  bool const many = order.count_unrecorded(1, seen.that->bytes, most);
  auto const use = many || order.asked() ? record_evidence(what) : what.use;
  return magazines_.post(*seen.that, use, seen.shard->posted);
}

// Under the shard's lock, while the pool is calm, or under all.
void pool_engine::take_in_posted(pool_shard& in) noexcept {
  for (auto* at = in.posted.exchange(nullptr, std::memory_order_acquire); at;) {
    auto& freed = *at;
    at = at->next;
    count_live(in, -static_cast<std::int64_t>(freed.requested), 0);
    ++in.counts.frees;
    ++in.paths.posted;
    --in.live_blocks;
    end_block(freed);
  }
}

free_result pool_engine::free_outright(ending const& what) noexcept {
  auto const& key = what.key;
  called_waiters calls;
  shard_locks const held{shards_};
  take_in_all();
  if (deferred_ && !key.capturing()) serve_deferred(&key);
  auto* const freed = checked_block(key, what.pointer, what.bytes);
  if (!freed) return free_result::refused;
  auto& home = *freed->home->shard;
  home.paths.all_locked += !shards_.single();
  note_stream(key.order());
  end_live(*freed, what, home);
  if (magazines_.starved()) sweep();
  call_next(calls);
  if (may_stall()) post_pass(); // it may have been the last that went on
  return is_unused() ? free_result::last : free_result::done;
}

// A block for which a magazine had no place any more.
free_result pool_engine::end_put_out(block& kept) noexcept {
  auto& home = *kept.home->shard;
  {
    auto const held = shards_.enter(home);
    if (calm_for(*kept.tags.begin()->order)) [[likely]] {
      ++home.paths.locked_calls;
      end_cached(kept);
      if (awaiting_ > 0) [[unlikely]]
        arrived_.notify_all();
      return free_result::done;
    }
  }
  called_waiters calls;
  shard_locks const held{shards_};
  ++home.paths.locked_calls;
  home.paths.all_locked += !shards_.single();
  if (deferred_) serve_deferred();
  note_stream(*kept.tags.begin()->order);
  end_cached(kept);
  if (awaiting_ > 0) arrived_.notify_all();
  call_next(calls);
  return is_unused() ? free_result::last : free_result::done;
}

block* pool_engine::checked_block(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
  auto* const found = shards_.granted_at(pointer).that;
  if (!found || !found->is_live()) return explain_misuse(key, pointer, bytes);
  if (bytes && *bytes != found->requested) return explain_misuse(key, pointer, bytes);
  return found;
}

block* pool_engine::explain_misuse(stream_key const& key, void* pointer, std::optional<std::size_t> bytes) noexcept {
  auto const refuse = [&](misuse::kind what, std::size_t expected) -> block* {
    report_misuse({what, pointer, bytes.value_or(0), expected, key.id(), options_.name.c_str()});
    return nullptr;
  };
  auto const* const home = supply_.chunks().covering(pointer);
  auto const* const found = home ? range_map::covering(*home, pointer) : nullptr;
  if (!found || found->now() == block_state::hole) return refuse(misuse::kind::foreign_pointer, 0);
  std::size_t const requested = found->requested;
  if (found->now() == block_state::deferred) return refuse(misuse::kind::double_free, requested);
  if (!found->is_live()) return refuse(misuse::kind::double_free, 0);
  return refuse(found->pointer() != pointer ? misuse::kind::foreign_pointer : misuse::kind::wrong_size, requested);
}

[[gnu::always_inline]] void pool_engine::end_live(block& freed, ending const& what, pool_shard& in) noexcept {
  auto const& key = what.key;
  count_live(in, -static_cast<std::int64_t>(freed.requested), 0);
  ++in.counts.frees;
  ++in.paths.locked_calls;
  --in.live_blocks;
  if (key.capturing()) [[unlikely]]
    return defer(freed, key);
  if (!freed.tags.empty()) [[unlikely]]
    order_.prune(freed.tags);
  // What the host frees nobody uses any more, but for recorded uses.
  if (!key.is_host()) [[likely]]
    freed.tags.add(leave_evidence(what, freed.bytes, in));
  end_block(freed);
}

// The end of a use on a stream. Evidence is recorded where somebody will want it, and only on a stream that this call
// was given or that is gpumem's. The stream's shelf counts first, so that streams of many threads do not meet at one
// counter.
[[gnu::always_inline]] tag pool_engine::leave_evidence(ending const& what, std::size_t bytes, pool_shard& in) noexcept {
  auto& order = *what.use.order;
  bool const many = leaves_evidence() && many_unrecorded(order, bytes, in);
  return many || order.asked() || pressure_ ? record_evidence(what) : what.use;
}

bool pool_engine::many_unrecorded(timeline& order, std::size_t bytes, pool_shard& in) noexcept {
  auto const most = most_unrecorded();
  auto* const own = in.ranges.by_order().find(order);
  if (!own) [[unlikely]]
    return order.count_unrecorded(1, bytes, most);
  if (!own->count_free(bytes, most)) [[likely]]
    return false;
  auto const frees = std::exchange(own->unrecorded_frees, 0);
  return order.count_unrecorded(frees, std::exchange(own->unrecorded_bytes, 0), most);
}

tag pool_engine::record_evidence(ending const& what) noexcept {
  auto& order = *what.use.order;
  if (what.key.has_handle() && options_.cross_stream != reuse::own && !lost()) {
    if (auto const recorded = order.record_precise(what.key.handle())) return {&order, recorded};
  }
  return what.use;
}

// What a stream frees joins what nobody uses, which it came from. That keeps the memory from other streams until the
// stream's work is over, so it is not done while the stream is behind.
[[gnu::always_inline]] range_map::joining pool_engine::joining_of(block const& freed) const noexcept {
  if (!several_) return range_map::joining::any;
  if (supply_.chunks().limit() != 0) return range_map::joining::alike; // what nobody uses is for all there
  bool const over = freed.tags.size() == 1 && !freed.tags.begin()->order->is_behind();
  return over ? range_map::joining::unused : range_map::joining::alike;
}

// From live to free; the tags say what reuse will have to be ordered after.
[[gnu::always_inline]] void pool_engine::end_block(block& freed) noexcept {
  auto& in = freed.home->shard->ranges;
  if (stays_apart(freed) && in.keep(freed)) return;
  after_free(in.release(freed, joining_of(freed)));
}

// A block that was kept near a thread, where its free was counted.
void pool_engine::end_cached(block& kept) noexcept {
  auto& home = *kept.home->shard;
  count_live(home, -static_cast<std::int64_t>(kept.requested), 0);
  --home.live_blocks;
  ++home.paths.swept;
  end_block(kept);
}

void pool_engine::look_after_free(block const& range) noexcept {
  ++changes_;
  if (pressure_ && !has_waiting()) {
    auto const most = supply_.chunks().limit() ? supply_.chunks().limit() : supply_.chunks().reserved();
    auto const granted = supply_.chunks().reserved() - free_bytes();
    set_pressure(most - std::min(most, granted) < most / 16);
  }
  bool const whole = supply_.paged() ? range.bytes >= smallest_page : range.home->live_blocks == 0;
  if (!whole || !too_much_reserved()) return;
  idle_passes_ = 0;
  post_pass();
}

// A capturing stream is not touched, and what it captures has not run: the free is done by the next call outside.
void pool_engine::defer(block& freed, stream_key const& key) noexcept {
  freed.become(block_state::deferred);
  freed.stream = &key.order();
  freed.stream->hold();
  freed.next = std::exchange(deferred_, &freed);
  set_caching();
  tell_waiting();
}

// `now`: the stream of a call that was given its handle.
void pool_engine::serve_deferred(stream_key const* now) noexcept {
  if (!deferred_) return;
  while (auto* const freed = deferred_) {
    deferred_ = freed->next;
    auto& order = *freed->stream;
    bool const given = now && &now->order() == &order && now->has_handle();
    auto const ended = !order.is_mortal() ? order.now()
                       : given            ? now->end_use(freed->bytes, true)
                                          : order.end_use(std::nullopt, freed->bytes, false);
    order_.prune(freed->tags);
    freed->tags.add({&order, ended});
    order.drop();
    end_block(*freed);
  }
  set_caching();
  tell_waiting();
}

} // namespace gpumem::detail
