// The way through the quarantine: complete, poisoned, copied, compared.
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
import :device;
import :guarded_block;
import :pattern;
import :pinned_resource;
import :stream;
import :tags;
import :timeline;

namespace gpumem::detail {
namespace {

inline constexpr std::size_t most_looked_at = 64; // by one call, so that calls stay short
inline constexpr std::size_t least_staging = std::size_t{1} << 20;

std::size_t staging_for(guard_layout const& layout) noexcept {
  return std::max(2 * layout.guard + granule + layout.poison, least_staging);
}

// Hands on those of the oldest whose last use the host has seen complete; those that `take` leaves stay. Blocks that
// are still in use do not hold up those behind them: where they are all that is looked at, they go to the end.
template <class List, class Take> void look_through(List& from, Take take) noexcept {
  List staying;
  bool stuck = true;
  std::size_t looked_at = 0;
  for (; from.first && looked_at < most_looked_at; ++looked_at) {
    auto& each = *from.pop();
    bool const complete = each.complete();
    stuck = stuck && !complete;
    if (!complete || !take(each)) staying.push(each);
  }
  if (stuck && looked_at == most_looked_at) std::swap(staying, from);
  from.prepend(staying);
}

} // namespace

quarantine::quarantine(std::optional<device> where, bool by_host, guard_layout const& layout)
    : layout_{layout}, by_host_{by_host} {
  if (by_host) return;
  own_.emplace(*where);
  pinned_.emplace(*where);
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

void quarantine::list::prepend(list& others) noexcept {
  if (!others.first) return;
  others.last->next = first;
  if (!first) last = others.last;
  first = others.first;
}

void quarantine::put(guarded_block& freed) noexcept {
  bytes_ += freed.granted;
  freed.wants_poison = !freed.poisoned;
  (freed.wants_poison ? unpoisoned_ : kept_).push(freed);
}

guarded_block* quarantine::advance(stream_key const* asking, std::size_t keep) noexcept {
  list out;
  finish_sending(out);
  if (unpoisoned_.first) {
    learn(unpoisoned_, asking);
    poison_complete();
  }
  if (bytes_ - sent_bytes_ > keep) {
    learn(kept_, asking);
    take_complete(keep, out);
  }
  return out.first;
}

guarded_block* quarantine::give_up() noexcept {
  list out;
  for (auto* const from : {&sent_, &kept_, &unpoisoned_}) {
    while (from->first) {
      auto& item = *from->pop();
      item.found = {};
      out.push(item);
    }
  }
  bytes_ = sent_bytes_ = staged_ = 0;
  return out.first;
}

// Polls what the oldest blocks wait for, and sees to it that there is something to poll.
void quarantine::learn(list const& oldest, stream_key const* asking) noexcept {
  timeline const* polled = nullptr;
  auto const look = [&](tag const& use) {
    if (!use.order || use.completed() || use.order == polled) return;
    learn(use, asking);
    polled = use.order;
  };
  std::size_t looked_at = 0;
  for (auto* each = oldest.first; each && looked_at < most_looked_at; each = each->next, ++looked_at) {
    for (auto const& use : each->until) look(use);
    look(each->given);
  }
}

void quarantine::learn(tag const& use, stream_key const* asking) noexcept {
  auto& order = *use.order;
  if (!use.has_evidence()) {
    bool const given = asking && &asking->order() == &order && asking->has_handle();
    order.cover(given ? std::optional{asking->handle()} : std::nullopt);
  }
  order.poll();
}

void quarantine::take_complete(std::size_t keep, list& out) noexcept {
  look_through(kept_, [&](guarded_block& each) {
    if (bytes_ - sent_bytes_ <= keep) return false;
    if (!by_host_) return send(each);
    each.look_in_place(layout_);
    bytes_ -= each.granted;
    out.push(each);
    return true;
  });
  if (sent_.first && sent_until_ == 0) sent_until_ = mark();
}

// What no free's stream could poison; from then on it is kept as the others.
void quarantine::poison_complete() noexcept {
  look_through(unpoisoned_, [&](guarded_block& each) {
    poison(each);
    kept_.push(each);
    return true;
  });
}

void quarantine::poison(guarded_block& complete) noexcept {
  complete.wants_poison = false;
  complete.poisoned = true;
  for (auto const& run : complete.inside(layout_)) {
    if (by_host_) {
      paint_by_host(run, pattern::poison);
    } else {
      complete.poisoned = paint(own_->key(), run, pattern::poison) && complete.poisoned;
    }
  }
}

// Copies what is to be compared, behind all that was painted on the same stream; false: not now.
bool quarantine::send(guarded_block& leaving) noexcept {
  if (sent_until_ != 0) return false; // one after the other
  auto const runs = leaving.all(layout_);
  auto const needed = runs[0].bytes + runs[1].bytes;
  if (needed > staging_bytes_ - staged_) return false;
  leaving.staged = staged_;
  bool copied = true;
  for (auto const& run : runs) {
    copied = copied && read_back(own_->key(), run, staging_ + staged_);
    staged_ += run.bytes;
  }
  // What cannot be read is not judged.
  if (!copied) leaving.guarded = leaving.poisoned = false;
  sent_bytes_ += leaving.granted;
  sent_.push(leaving);
  return true;
}

// The epoch of the own stream that tells when all enqueued so far is over.
epoch quarantine::mark() noexcept {
  auto& order = own_->key().order();
  auto const recorded = order.record_late(order.handle());
  return recorded ? recorded : order.now();
}

void quarantine::finish_sending(list& out) noexcept {
  if (!sent_.first) return;
  auto const key = own_->key();
  learn({&key.order(), sent_until_}, nullptr);
  if (!key.order().completed(sent_until_)) return;
  while (sent_.first) {
    auto& each = *sent_.pop();
    each.look(layout_, staging_ + each.staged);
    out.push(each);
  }
  bytes_ -= std::exchange(sent_bytes_, 0);
  staged_ = 0;
  sent_until_ = 0;
}

bool quarantine::may_advance() const noexcept {
  auto const may = [](guarded_block const& each) {
    bool const given_may = each.given.order && each.given.may_complete();
    return given_may || each.complete() || std::ranges::any_of(each.until, &tag::may_complete);
  };
  if (sent_.first) return true;
  for (auto const* const from : {&kept_, &unpoisoned_}) {
    for (auto const* each = from->first; each; each = each->next) {
      if (may(*each)) return true;
    }
  }
  return false;
}

std::vector<timeline*> quarantine::open_timelines(bool without_evidence) const {
  std::vector<timeline*> found;
  auto const note = [&](tag const& use) {
    if (!use.order || use.completed() || (without_evidence && use.has_evidence())) return;
    found.push_back(use.order);
  };
  for (auto const* const from : {&kept_, &unpoisoned_}) {
    for (auto const* each = from->first; each; each = each->next) {
      for (auto const& use : each->until) note(use);
      note(each->given);
    }
  }
  if (sent_.first) note({&own_->key().order(), sent_until_});
  std::ranges::sort(found, {}, &timeline::index);
  auto const [first, last] = std::ranges::unique(found);
  found.erase(first, last);
  return found;
}

// Nobody waits for it: the guards are nobody's to touch, and whoever is given the block later comes after it.
void quarantine::guard_by_itself(guarded_block& fresh) noexcept {
  fresh.guarded = true;
  for (auto const& run : fresh.guards(layout_))
    fresh.guarded = paint(own_->key(), run, pattern::guard) && fresh.guarded;
  fresh.guards_alone = true;
  fresh.given = {&own_->key().order(), mark()};
}

} // namespace gpumem::detail
