// Adds, finds and removes the blocks of a hardened pool, and explains wrong frees.
// SPDX-License-Identifier: Apache-2.0
module;
#include <gpumem/statistics.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
module gpumem:guarded_blocks.impl;
import :guarded_blocks;
import :block_history;
import :guarded_block;
import :misuse;
import :pool_reports;

namespace gpumem::detail {

void guarded_blocks::add(std::unique_ptr<guarded_block> made) {
  auto const address = reinterpret_cast<std::uintptr_t>(made->user);
  blocks_.emplace(address, std::move(made));
}

void guarded_blocks::make_live(guarded_block& fresh) noexcept {
  fresh.live = true;
  ++allocations_;
  live_ += fresh.bytes;
  peak_live_ = std::max(peak_live_, live_);
  history_.record(block_event::kind::allocated, fresh.user, fresh.bytes, fresh.stream);
}

guarded_block* guarded_blocks::end_life(void const* pointer, std::optional<std::size_t> bytes,
                                        std::uint64_t stream) noexcept {
  auto* const found = find_live(pointer);
  if (!found || (bytes && *bytes != found->bytes)) return nullptr;
  found->live = false;
  found->freed_on = stream;
  live_ -= found->bytes;
  ++frees_;
  history_.record(block_event::kind::freed, pointer, found->bytes, stream);
  return found;
}

void guarded_blocks::remove(guarded_block const& outgoing) noexcept {
  blocks_.erase(reinterpret_cast<std::uintptr_t>(outgoing.user));
}

guarded_block* guarded_blocks::find_containing(void const* pointer) noexcept {
  // The map is ordered by the addresses that users have, but a block starts with a guard before its user's bytes. So
  // the block with the next higher address may hold the pointer.
  auto above = blocks_.upper_bound(reinterpret_cast<std::uintptr_t>(pointer));
  if (above != blocks_.end() && above->second->holds(pointer)) return above->second.get();
  if (above == blocks_.begin()) return nullptr;
  auto& below = *std::prev(above)->second;
  return below.holds(pointer) ? &below : nullptr;
}

guarded_block* guarded_blocks::find_live(void const* pointer) noexcept {
  auto* const found = find_containing(pointer);
  return found && found->user == pointer && found->live ? found : nullptr;
}

live_blocks guarded_blocks::all_live() const {
  live_blocks found;
  for (auto const& [user, one] : blocks_) {
    if (one->live) found.add({one->user, one->bytes, one->allocated, one->stream, true});
  }
  return found;
}

// The misuse is a double free if the block at the pointer is freed already, or if the history has a free of the
// pointer. If a live block starts at the pointer, that earlier free must also have had this size; otherwise the size is
// wrong.
misuse guarded_blocks::explain(void const* pointer, std::optional<std::size_t> bytes) noexcept {
  auto const* const found = find_containing(pointer);
  misuse wrong{misuse::kind::foreign_pointer, pointer, bytes.value_or(0), found ? found->bytes : 0};
  if (found && found->user == pointer) {
    bool const stale = !found->live || history_.last_free(pointer, bytes);
    wrong.what = stale ? misuse::kind::double_free : misuse::kind::wrong_size;
  } else if (auto const* const before = history_.last_free(pointer, std::nullopt)) {
    wrong.what = misuse::kind::double_free;
    wrong.expected = before->bytes;
  }
  return wrong;
}

void guarded_blocks::amend(statistics& seen) const noexcept {
  seen.live = live_;
  seen.peak_live = peak_live_;
  seen.allocations = allocations_;
  seen.frees = frees_;
}

} // namespace gpumem::detail
