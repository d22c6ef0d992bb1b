// The chunks of a pool: size of the next chunk, look-up by address, sums of bytes.
// SPDX-License-Identifier: Apache-2.0
module;
#include <base/tuning.hpp>
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>
module gpumem:chunk_list.impl;
import :chunk_list;
import :block;

namespace gpumem::detail {

namespace {

std::uintptr_t base_of(std::unique_ptr<chunk> const& chunk) noexcept { return chunk->base; }

} // namespace

std::size_t chunk_list::growth(std::size_t need, std::size_t has) const noexcept {
  if (need > headroom()) return 0;
  if (chunk_bytes_) return std::min(std::max(need, chunk_bytes_), headroom());
  auto const wanted =
      std::max(need, std::clamp(has / tuning::chunk_fraction, tuning::min_chunk_bytes, tuning::max_chunk_bytes));
  auto const step = tuning::min_chunk_bytes;
  auto const whole = wanted > SIZE_MAX - step ? wanted : (wanted + step - 1) / step * step;
  return std::min(whole, headroom());
}

std::size_t chunk_list::headroom() const noexcept {
  return max_reserved() - std::min(max_reserved(), reserved_ + releasing_);
}

bool chunk_list::near_limit() const noexcept {
  auto const max_bytes = limit();
  return max_bytes && max_bytes - std::min(max_bytes, reserved_) < max_bytes / 4;
}

// A limit of 0 would mean that there is none, so the least limit is a granule.
void chunk_list::set_limit(std::size_t bytes) noexcept {
  whole_limit_ = bytes;
  limit_.store(bytes ? std::max(bytes - std::min(bytes, outside_), granule) : 0, std::memory_order_relaxed);
}

std::optional<std::size_t> chunk_list::room_beside(std::size_t more) const noexcept {
  if (whole_limit_ == 0) return SIZE_MAX;
  auto const left = whole_limit_ - std::min(whole_limit_, outside_);
  return more <= left ? std::optional{left - more} : std::nullopt;
}

void chunk_list::add_outside(std::size_t bytes) noexcept {
  outside_ += bytes;
  set_limit(whole_limit_);
}

void chunk_list::remove_outside(std::size_t bytes) noexcept {
  outside_ -= bytes;
  set_limit(whole_limit_);
}

chunk& chunk_list::add(void* base, std::size_t bytes, std::size_t reserved) {
  auto const address = reinterpret_cast<std::uintptr_t>(base);
  auto const place = std::ranges::upper_bound(chunks_, address, {}, &base_of);
  auto& made = **chunks_.insert(place, std::make_unique<chunk>(chunk{.base = address, .bytes = bytes}));
  add_reserved(reserved);
  return made;
}

void chunk_list::add_reserved(std::size_t bytes) noexcept {
  reserved_ += bytes;
  reserved_in_all_ += bytes;
  reserved_by_all_.fetch_add(bytes, std::memory_order_relaxed);
  peak_ = std::max(peak_, reserved_ + releasing_);
}

chunk* chunk_list::find_containing(void const* pointer) const noexcept {
  auto const address = reinterpret_cast<std::uintptr_t>(pointer);
  auto const after = std::ranges::upper_bound(chunks_, address, {}, &base_of);
  if (after == chunks_.begin()) return nullptr;
  auto& found = **std::prev(after);
  return address < found.end() ? &found : nullptr;
}

chunk const* chunk_list::first_ending_above(std::uintptr_t address) const noexcept {
  auto const found = std::ranges::upper_bound(chunks_, address, {}, [](auto const& each) { return each->end(); });
  return found == chunks_.end() ? nullptr : found->get();
}

void chunk_list::erase(chunk const& chunk) noexcept {
  chunks_.erase(std::ranges::lower_bound(chunks_, chunk.base, {}, &base_of));
}

chunk chunk_list::begin_release(chunk const& chunk) noexcept {
  auto const gone = chunk;
  erase(chunk);
  begin_release(gone.bytes);
  return gone;
}

} // namespace gpumem::detail
