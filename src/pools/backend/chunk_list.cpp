// The size of the next chunk, and the chunks by address.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>
module gpumem:chunk_list.impl;
import :chunk_list;
import :chunk;

namespace gpumem::detail {

namespace {

inline constexpr std::size_t chunk_step = std::size_t{2} << 20;
inline constexpr std::size_t largest_step = std::size_t{512} << 20;
// A new chunk has this part of the bytes that the shard has. Larger chunks fragment less; smaller ones reserve less
// that is never used. On recorded traces this fraction and these bounds kept more of the reserved memory in use than
// all others that were tried.
inline constexpr std::size_t growth_fraction = 6;

std::uintptr_t base_of(std::unique_ptr<chunk> const& each) noexcept { return each->base; }

} // namespace

std::size_t chunk_list::growth(std::size_t need, std::size_t has) const noexcept {
  if (need > headroom()) return 0;
  auto const wanted = std::max(need, std::clamp(has / growth_fraction, chunk_step, largest_step));
  auto const whole = wanted > SIZE_MAX - chunk_step ? wanted : (wanted + chunk_step - 1) / chunk_step * chunk_step;
  return std::min(whole, headroom());
}

std::size_t chunk_list::headroom() const noexcept {
  return max_reserved() - std::min(max_reserved(), reserved_ + releasing_);
}

chunk& chunk_list::add(void* base, std::size_t bytes) {
  auto const address = reinterpret_cast<std::uintptr_t>(base);
  auto const place = std::ranges::upper_bound(chunks_, address, {}, &base_of);
  auto& made = **chunks_.insert(place, std::make_unique<chunk>(chunk{.base = address, .bytes = bytes}));
  add_reserved(bytes);
  return made;
}

void chunk_list::add_reserved(std::size_t bytes) noexcept {
  reserved_ += bytes;
  peak_ = std::max(peak_, reserved_ + releasing_);
}

chunk* chunk_list::find_containing(void const* pointer) const noexcept {
  auto const address = reinterpret_cast<std::uintptr_t>(pointer);
  auto const after = std::ranges::upper_bound(chunks_, address, {}, &base_of);
  if (after == chunks_.begin()) return nullptr;
  auto& found = **std::prev(after);
  return address < found.end() ? &found : nullptr;
}

void chunk_list::erase(chunk const& which) noexcept {
  chunks_.erase(std::ranges::lower_bound(chunks_, which.base, {}, &base_of));
}

chunk chunk_list::begin_release(chunk const& which) noexcept {
  auto const gone = which;
  erase(which);
  begin_release(gone.bytes);
  return gone;
}

} // namespace gpumem::detail
