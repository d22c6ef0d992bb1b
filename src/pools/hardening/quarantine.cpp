// Polls for the end of the uses of blocks in quarantine, poisons them, and looks for overwritten bytes.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>
module gpumem:quarantine.impl;
import :quarantine;
import :block;
import :cuda;
import :cuda_resource;
import :device;
import :guarded_blocks;
import :pool_parts;
import :stream;
import :stream_timeline;

namespace gpumem::detail {
namespace {

inline constexpr std::size_t max_visited = 64; // most blocks that one call visits, so that the call stays short
inline constexpr std::size_t least_staging = std::size_t{1} << 20;

std::size_t staging_for(guard_layout const& layout) noexcept {
  return std::max(2 * layout.guard + granule + layout.poison, least_staging);
}

// Visits the oldest `max_visited` blocks, and calls `take` for those whose uses are complete. Keeps blocks for which
// `take` returns false. If all visited blocks are still in use, moves them to the end of the list, so that the next
// call visits other blocks.
template <class List, class Take> void for_each_complete(List& blocks, Take take) noexcept {
  List staying;
  bool stuck = true;
  std::size_t visited = 0;
  for (; blocks.first && visited < max_visited; ++visited) {
    auto& each = *blocks.pop();
    bool const complete = each.complete();
    stuck = stuck && !complete;
    if (!complete || !take(each)) staying.push(each);
  }
  if (stuck && visited == max_visited) std::swap(staying, blocks);
  blocks.prepend(staying);
}

} // namespace

quarantine::quarantine(std::optional<device> device, bool by_host, guard_layout const& layout)
    : layout_{layout}, by_host_{by_host} {
  if (by_host) return;
  copy_stream_.emplace(*device);
  pinned_.emplace(*device);
  staging_bytes_ = staging_for(layout);
  staging_ = static_cast<char*>(pinned_->allocate_sync(staging_bytes_));
}

quarantine::~quarantine() {
  if (pinned_) pinned_->deallocate_sync(staging_, staging_bytes_);
}

void quarantine::list::push(guarded_block& item) noexcept {
  item.next = nullptr;
  (last ? last->next : first) = &item;
  last = &item;
}

guarded_block* quarantine::list::pop() noexcept {
  auto* const item = first;
  first = item->next;
  if (!first) last = nullptr;
  return item;
}

void quarantine::list::prepend(list& list) noexcept {
  if (!list.first) return;
  list.last->next = first;
  if (!first) last = list.last;
  first = list.first;
}

void quarantine::put(guarded_block& guarded) noexcept {
  bytes_ += guarded.allocated;
  guarded.needs_poison = !guarded.poisoned;
  (guarded.needs_poison ? unpoisoned_ : kept_).push(guarded);
}

guarded_block* quarantine::advance(stream_key const* asking, std::size_t keep) noexcept {
  list evicted;
  end_sending(evicted);
  if (unpoisoned_.first) {
    poll(unpoisoned_, asking);
    poison_complete();
  }
  if (bytes_ - sent_bytes_ > keep) {
    poll(kept_, asking);
    take_complete(keep, evicted);
  }
  return evicted.first;
}

guarded_block* quarantine::give_up() noexcept {
  list evicted;
  for (auto* const from : {&sent_, &kept_, &unpoisoned_}) {
    while (from->first) {
      auto& item = *from->pop();
      item.report = {};
      evicted.push(item);
    }
  }
  bytes_ = sent_bytes_ = staged_ = 0;
  return evicted.first;
}

// Polls the streams that still use the oldest blocks. If no event was recorded after a use, records one or requests one
// from the stream's next free.
void quarantine::poll(list const& oldest, stream_key const* asking) noexcept {
  stream_timeline const* polled = nullptr;
  auto const poll_use = [&](stream_use const& use) {
    if (!use.timeline || use.completed() || use.timeline == polled) return;
    poll(use, asking);
    polled = use.timeline;
  };
  std::size_t visited = 0;
  for (auto* each = oldest.first; each && visited < max_visited; each = each->next, ++visited) {
    for (auto const& use : each->uses) poll_use(use);
    poll_use(each->granted_use);
  }
}

void quarantine::poll(stream_use const& use, stream_key const* asking) noexcept {
  auto& timeline = *use.timeline;
  if (!use.has_event()) {
    bool const granted_use = asking && &asking->identity().timeline() == &timeline && asking->identity().has_handle();
    timeline.cover(granted_use ? std::optional{asking->identity().handle()} : std::nullopt);
  }
  timeline.poll();
}

void quarantine::take_complete(std::size_t keep, list& list) noexcept {
  for_each_complete(kept_, [&](guarded_block& each) {
    if (bytes_ - sent_bytes_ <= keep) return false;
    if (!by_host_) return send(each);
    each.check_in_place(layout_);
    bytes_ -= each.allocated;
    list.push(each);
    return true;
  });
  if (sent_.first && sent_until_ == 0) sent_until_ = record_epoch();
}

// Poisons the complete blocks of `unpoisoned_`, and moves them to `kept_`.
void quarantine::poison_complete() noexcept {
  for_each_complete(unpoisoned_, [&](guarded_block& each) {
    poison(each);
    kept_.push(each);
    return true;
  });
}

void quarantine::poison(guarded_block& complete) noexcept {
  complete.needs_poison = false;
  complete.poisoned = true;
  for (auto const& run : complete.inside(layout_)) {
    if (by_host_) {
      fill_by_host(run, fill_pattern::poison);
    } else {
      complete.poisoned = fill(copy_stream_->key(), run, fill_pattern::poison) && complete.poisoned;
    }
  }
}

// Enqueues a copy of the bytes to check on the quarantine's own stream, after all fills on that stream. The copy goes
// to the staging memory. Returns false if that memory has no room, or if earlier copies are not compared yet.
bool quarantine::send(guarded_block& outgoing) noexcept {
  if (sent_until_ != 0) return false; // earlier copies have not ended; an event marks their end
  auto const runs = outgoing.all(layout_);
  auto const copied_bytes = runs[0].bytes + runs[1].bytes;
  if (copied_bytes > staging_bytes_ - staged_) return false;
  outgoing.staged = staged_;
  bool copied = true;
  for (auto const& run : runs) {
    copied = copied && read_back(copy_stream_->key(), run, staging_ + staged_);
    staged_ += run.bytes;
  }
  // If the copy failed, the block leaves the quarantine without a check.
  if (!copied) outgoing.guards_filled = outgoing.poisoned = false;
  sent_bytes_ += outgoing.allocated;
  sent_.push(outgoing);
  return true;
}

// Returns an epoch of the quarantine's own stream. When the epoch is complete, all work enqueued on the stream before
// this call is complete.
epoch quarantine::record_epoch() noexcept {
  auto& timeline = copy_stream_->key().identity().timeline();
  auto const recorded = timeline.record_later(timeline.handle());
  return recorded ? recorded : timeline.current_epoch();
}

void quarantine::end_sending(list& list) noexcept {
  if (!sent_.first) return;
  auto const key = copy_stream_->key();
  poll({&key.identity().timeline(), sent_until_}, nullptr);
  if (!key.identity().timeline().completed(sent_until_)) return;
  while (sent_.first) {
    auto& each = *sent_.pop();
    each.check(layout_, staging_ + each.staged);
    list.push(each);
  }
  bytes_ -= std::exchange(sent_bytes_, 0);
  staged_ = 0;
  sent_until_ = 0;
}

bool quarantine::may_advance() const noexcept {
  auto const may = [](guarded_block const& each) {
    bool const given_may = each.granted_use.timeline && each.granted_use.may_complete();
    return given_may || each.complete() || std::ranges::any_of(each.uses, &stream_use::may_complete);
  };
  if (sent_.first) return true;
  for (auto const* const from : {&kept_, &unpoisoned_}) {
    for (auto const* each = from->first; each; each = each->next) {
      if (may(*each)) return true;
    }
  }
  return false;
}

std::vector<stream_timeline*> quarantine::streams_in_use(bool without_event) const {
  std::vector<stream_timeline*> timelines;
  auto const add = [&](stream_use const& use) {
    if (!use.timeline || use.completed() || (without_event && use.has_event())) return;
    timelines.push_back(use.timeline);
  };
  for (auto const* const from : {&kept_, &unpoisoned_}) {
    for (auto const* each = from->first; each; each = each->next) {
      for (auto const& use : each->uses) add(use);
      add(each->granted_use);
    }
  }
  if (sent_.first) add({&copy_stream_->key().identity().timeline(), sent_until_});
  std::ranges::sort(timelines, {}, &stream_timeline::index);
  auto const [first, last] = std::ranges::unique(timelines);
  timelines.erase(first, last);
  return timelines;
}

// Fills only the guards, on the quarantine's own stream. No stream waits for this fill: users must not touch the
// guards, and the quarantine keeps the block until the fill is complete.
void quarantine::fill_guards_alone(guarded_block& fresh) noexcept {
  fresh.guards_filled = true;
  for (auto const& run : fresh.guards(layout_))
    fresh.guards_filled = fill(copy_stream_->key(), run, fill_pattern::guard) && fresh.guards_filled;
  fresh.only_guards_filled = true;
  fresh.granted_use = {&copy_stream_->key().identity().timeline(), record_epoch()};
}

} // namespace gpumem::detail
