// Grows, shrinks, discards and restores the pages of a growable_buffer.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cuda.h>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
module gpumem.growable;

namespace gpumem {

void growable_buffer::throw_empty() {
  throw std::invalid_argument{"gpumem: growable_buffer: the buffer is empty; was it moved from?"};
}

void growable_buffer::check(bool pool_valid, growable_options const& options) {
  auto const fail = [&](std::string const& why) {
    throw std::invalid_argument{"gpumem: " + options.name + ": " + why};
  };
  if (!pool_valid) fail("the pool is empty; was it moved from?");
  if (options.reserve == 0) fail("a growable_buffer needs addresses: set growable_options::reserve");
  if (options.initial > options.reserve)
    fail("the initial " + std::to_string(options.initial) + " bytes exceed the " + std::to_string(options.reserve) +
         " bytes of addresses");
}

} // namespace gpumem

namespace gpumem::detail {
namespace {

// A buffer chooses no larger pages by itself: a page of this size takes .05 ms to make on an H200, and smaller ones
// take longer in all.
constexpr std::size_t largest_page_of_buffer = std::size_t{512} << 20;
// A growth maps more than was asked for, so that a buffer that grows in small steps makes few driver calls: an eighth
// of the buffer, at most this size, or 1/64 of the buffer if that is more.
constexpr std::size_t usual_advance = std::size_t{32} << 20;

failure wrong_argument(std::size_t bytes) noexcept {
  return {outcome::invalid_argument, static_cast<int>(broken_rule::other), bytes};
}

failure unopened_device(std::size_t bytes) noexcept {
  return {outcome::invalid_argument, static_cast<int>(broken_rule::unopened_device), bytes};
}

std::string text_of(std::size_t bytes) { return std::to_string(bytes); }

} // namespace

// The buffer's mutex is not held while a hardened pool frees blocks that it keeps.
expected<void*, failure> growth_request::try_allocate(extend::stream_key const& key, std::size_t,
                                                      std::size_t) noexcept {
  auto const end = buffer_.end();
  auto result = buffer_.serve(*this, key);
  bool const exhausted = !result && result.error().reason == outcome::exhausted;
  if (exhausted && buffer_.lender().free_kept(key.with_waiting(false))) result = buffer_.serve(*this, key);
  if (result && buffer_.end() > end) buffer_.lender().wake_satisfied();
  return result;
}

bool growth_request::admit(extend::waiter& item) noexcept {
  item.set_lack(*this);
  return buffer_.lender().admit_with(item, [&] {
    return item.allocate_parts(
        [&](extend::request_part const& one) {
          return try_allocate(one.stream.queueing_as(extend::queueing::admitted), one.bytes, one.alignment);
        },
        [](extend::request_part const&) {});
  });
}

statistics growth_request::read_statistics() { return buffer_.lender().read_statistics(); }

std::size_t growth_request::bytes() const noexcept {
  if (aim_ == aim::restore) return std::min(wanted_.bytes, buffer_.reserved());
  auto const end = buffer_.pages_end(std::min(wanted_.bytes, buffer_.reserved()));
  return end - std::min(buffer_.end(), end);
}

growable_state::growable_state(page_lender lender, growable_options const& options)
    : lender_{std::move(lender)}, page_{options.page ? options.page : largest_page_of_buffer},
      unit_{options.page ? options.page : lender_.state().granularity()}, name_{options.name}, label_{options.name} {
  auto const most = std::min(largest_page_of_buffer, reserved());
  if (options.page > most)
    throw std::invalid_argument{"gpumem: " + name_ + ": pages of " + text_of(page_) + " bytes are larger than " +
                                text_of(most) + " bytes, the most for this buffer"};
  if (page_ % granularity() != 0)
    throw std::invalid_argument{"gpumem: " + name_ + ": pages of " + text_of(page_) +
                                " bytes are no multiple of the granularity, " + text_of(granularity()) + " bytes"};
}

// Frees as an allocation does: not in a forked child, and not while the process exits.
growable_state::~growable_state() {
  if (!timeline_) return;
  if (driver_api::driver_alive()) free(extend::stream_key::at_end_of(*timeline_, stream_), loans_);
  timeline_->remove_keeper();
}

void growable_state::use(extend::stream_key const& key) noexcept {
  auto& timeline = key.identity().timeline();
  stream_.store(key.identity().handle(), std::memory_order_relaxed);
  if (timeline_ == &timeline) return;
  timeline.add_keeper();
  if (timeline_) timeline_->remove_keeper();
  timeline_ = &timeline;
}

// Returns the end up to which a growth maps. There is no advance if the user has named the size of pages.
std::size_t growable_state::growth_end(std::size_t bytes) const noexcept {
  auto const advance = unit_ == page_ ? 0 : std::min(bytes / 8, std::max(usual_advance, bytes / 64));
  return pages_end(bytes + advance);
}

growth_request::fault growable_state::fault_of(growth_request const& asked) const noexcept {
  using enum growth_request::fault;
  auto const& wanted = asked.wanted_;
  if (asked.aim_ != growth_request::aim::restore) return wanted.bytes > reserved() ? beyond : none;
  auto const unit = granularity();
  if (wanted.bytes == 0 || wanted.bytes % unit != 0 || wanted.offset % unit != 0) return unaligned;
  auto const end = round_up(bytes());
  if (wanted.bytes > end || wanted.offset > end - wanted.bytes) return outside;
  return overlaps(wanted) ? mapped : none;
}

void growable_state::throw_wrong(growth_request const& asked) const {
  using enum growth_request::fault;
  auto const& wanted = asked.wanted_;
  if (asked.fault_ == beyond) {
    throw out_of_memory{outcome::too_large,
                        {.requested = wanted.bytes},
                        "gpumem: " + name_ + ": a growth to " + text_of(wanted.bytes) + " bytes exceeds the " +
                            text_of(reserved()) + " bytes of reserved addresses"};
  }
  auto text = "gpumem: " + name_ + ": cannot restore " + text_of(wanted.bytes) + " bytes at offset " +
              text_of(wanted.offset) + ": ";
  if (asked.fault_ == unaligned) text += "both must be multiples of " + text_of(granularity());
  if (asked.fault_ == outside) text += "the buffer has " + text_of(bytes()) + " bytes";
  if (asked.fault_ == mapped) text += "a part of them is not discarded";
  throw std::invalid_argument{text};
}

// Another thread may be about to free what lies there. Then the request finds no memory for the moment.
expected<void*, failure> growable_state::lend(extend::stream_key const& key, extend::page_extent extent) noexcept try {
  auto const [place, added] = loans_.try_emplace(extent.offset, extent.bytes);
  auto const lent = lender().lend_at(extent.offset, key, extent.bytes, 1, page_);
  if (!lent) {
    loans_.erase(place);
    auto const& why = lent.error();
    bool const busy = why.reason == outcome::invalid_argument && why.code == 0;
    return unexpected<failure>{busy ? failure{outcome::exhausted, 0, extent.bytes} : why};
  }
  lender().set_label(*lent, label_.number());
  mapped_.store(mapped() + extent.bytes, std::memory_order_relaxed);
  return lent;
} catch (std::bad_alloc const&) {
  return unexpected<failure>{failure{outcome::exhausted, -1, extent.bytes}}; // the host has no memory
}

expected<void*, failure> growable_state::serve(growth_request& asked, extend::stream_key const& key) noexcept {
  using enum growth_request::aim;
  sync::lock const held{mutex_};
  if (!lender().serves_stream(key)) return unexpected<failure>{unopened_device(asked.wanted_.bytes)};
  auto const now = key.with_waiting(false); // no call of a buffer waits on the host for a stream
  auto const& wanted = asked.wanted_;
  asked.fault_ = fault_of(asked);
  if (asked.fault_ != growth_request::fault::none) [[unlikely]] {
    if (asked.fault_ == growth_request::fault::beyond)
      return unexpected<failure>{failure{outcome::too_large, 0, wanted.bytes}};
    return unexpected<failure>{wrong_argument(wanted.bytes)};
  }
  if (asked.aim_ == restore) {
    if (auto const lent = lend(now, wanted); !lent) return lent;
  } else if (auto const begin = end(); wanted.bytes > begin) {
    auto const least = pages_end(wanted.bytes);
    // A request in its turn takes no more than what was set aside for it.
    bool const exact = asked.aim_ == grow_exactly || key.context().queues() == extend::queueing::admitted;
    auto last = exact ? least : growth_end(wanted.bytes);
    auto lent = lend(now, {begin, last - begin});
    auto const short_of_memory = [&] {
      return lent.error().reason == outcome::exhausted || lent.error().reason == outcome::too_large;
    };
    if (!lent && last > least && short_of_memory()) {
      last = least;
      lent = lend(now, {begin, last - begin});
    }
    if (!lent) return lent;
    end_.store(last, std::memory_order_relaxed);
  }
  if (asked.aim_ != restore && wanted.bytes > bytes()) bytes_.store(wanted.bytes, std::memory_order_relaxed);
  use(key);
  return base();
}

expected<void, failure> growable_state::try_now(stream_ref stream, extend::page_extent wanted,
                                                growth_request::aim aim) noexcept {
  growth_request request{*this, wanted, aim};
  auto const result = growth_resource{request}.try_allocate(stream, request.lacking());
  if (!result) return unexpected<failure>{result.error()};
  return {};
}

void growable_state::grow(stream_ref stream, std::size_t bytes, growth_request::aim aim) {
  growth_request request{*this, {0, bytes}, aim};
  try {
    static_cast<void>(growth_resource{request}.allocate(stream, request.lacking()));
  } catch (...) {
    request.throw_if_wrong();
    throw;
  }
}

void growable_state::begin_discarded(stream_ref stream, std::size_t bytes) {
  auto const key = identify(stream);
  sync::lock const held{mutex_};
  bytes_.store(bytes, std::memory_order_relaxed);
  end_.store(round_up(bytes), std::memory_order_relaxed);
  use(key);
}

extend::stream_key growable_state::identify(stream_ref stream, bool may_capture) const {
  throw_if_child();
  auto const where = lender().where();
  auto const key = where ? extend::identify(stream, *where) : extend::identify(stream);
  if (!lender().serves_stream(key)) extend::throw_failure(unopened_device(0));
  if (!may_capture && key.asked().identity().capturing()) extend::throw_failure({outcome::capture_unsupported, 0, 0});
  return key;
}

// Returns the offset up to which the addresses are lent without a gap, at most the end.
std::size_t growable_state::lent_until(extend::page_extent extent) const noexcept {
  auto at = extent.offset;
  auto each = loans_.upper_bound(at);
  if (each != loans_.begin()) --each;
  for (; each != loans_.end() && each->first <= at && at < extent.end(); ++each)
    at = std::max(at, each->first + each->second);
  return std::min(at, extent.end());
}

bool growable_state::overlaps(extend::page_extent extent) const noexcept {
  auto const above = loans_.lower_bound(extent.end());
  if (above == loans_.begin()) return false;
  auto const last = std::prev(above);
  return last->first + last->second > extent.offset;
}

// Divides the loan in which the offset lies, if it begins before.
void growable_state::divide_at(std::size_t offset) {
  auto const above = loans_.upper_bound(offset);
  if (above == loans_.begin()) return;
  auto const loan = std::prev(above);
  auto const [begin, bytes] = *loan;
  if (begin == offset || begin + bytes <= offset) return;
  auto const upper = loans_.emplace_hint(above, offset, begin + bytes - offset);
  try {
    lender().divide(static_cast<std::byte*>(base()) + begin, offset - begin);
  } catch (...) {
    loans_.erase(upper);
    throw;
  }
  loan->second = offset - begin;
}

// Takes the loans out of the list. Throws std::bad_alloc, and then takes none.
growable_state::loan_map growable_state::take(extend::page_extent extent) {
  divide_at(extent.offset);
  divide_at(extent.end());
  loan_map taken;
  for (auto each = loans_.lower_bound(extent.offset); each != loans_.end() && each->first < extent.end();) {
    mapped_.store(mapped() - each->second, std::memory_order_relaxed);
    taken.insert(taken.end(), loans_.extract(each++));
  }
  return taken;
}

void growable_state::free(extend::stream_key const& key, loan_map const& loans) noexcept {
  for (auto const& [offset, bytes] : loans)
    lender().deallocate(key, static_cast<std::byte*>(base()) + offset, bytes, 1);
}

growable_state::loan_map growable_state::cut(extend::stream_key const& key, std::size_t bytes) {
  loan_map freed;
  sync::lock const held{mutex_};
  if (bytes > this->bytes()) {
    throw std::invalid_argument{"gpumem: " + name_ + ": cannot shrink to " + text_of(bytes) +
                                " bytes: the buffer has " + text_of(this->bytes()) + " bytes"};
  }
  // A later growth maps again what was discarded beyond the new size.
  auto const least = round_up(bytes);
  auto const begin = std::min(lent_until({least, pages_end(bytes) - least}), end());
  if (begin < end()) freed = take({begin, end() - begin});
  bytes_.store(bytes, std::memory_order_relaxed);
  end_.store(begin, std::memory_order_relaxed);
  use(key);
  return freed;
}

void growable_state::discard(stream_ref stream, extend::page_extent extent) {
  auto const key = identify(stream);
  loan_map freed;
  {
    sync::lock const held{mutex_};
    auto const unit = granularity(), end = round_up(bytes());
    auto const fail = [&](std::string const& why) {
      throw std::invalid_argument{"gpumem: " + name_ + ": cannot discard " + text_of(extent.bytes) +
                                  " bytes at offset " + text_of(extent.offset) + ": " + why};
    };
    if (extent.bytes == 0 || extent.bytes % unit != 0 || extent.offset % unit != 0)
      fail("both must be multiples of " + text_of(unit));
    if (extent.bytes > end || extent.offset > end - extent.bytes) fail("the buffer has " + text_of(bytes()) + " bytes");
    if (auto const until = lent_until(extent); until != extent.end())
      fail("the memory at offset " + text_of(until) + " is discarded already");
    freed = take(extent);
    use(key);
  }
  free(key, freed);
}

} // namespace gpumem::detail
