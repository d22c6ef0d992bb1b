// Writes and searches the ring buffer of the last allocations and frees of a hardened pool.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>
module gpumem:block_history.impl;
import :block_history;
import :misuse;
import :sync;

namespace gpumem::detail {
namespace {

bool covers(block_event const& event, void const* address) noexcept {
  auto const begin = reinterpret_cast<std::uintptr_t>(event.pointer);
  return reinterpret_cast<std::uintptr_t>(address) - begin < event.bytes;
}

} // namespace

void block_history::record(block_event::kind what, void const* pointer, std::size_t bytes,
                           std::uint64_t stream) noexcept {
  auto const sequence = ++recorded_;
  if (ring_.empty()) return;
  ring_[sequence % ring_.size()] = {what, sync::thread_index(), sequence, stream, pointer, bytes};
}

// Visits the events, the newest first, until `visit` returns false.
template <class Visit> void block_history::visit_newest_first(Visit visit) const {
  auto const kept = std::min<std::uint64_t>(recorded_, ring_.size());
  for (std::uint64_t i = 0; i < kept; ++i) {
    if (!visit(ring_[(recorded_ - i) % ring_.size()])) return;
  }
}

std::size_t block_history::newest(void const* address, block_event* into, std::size_t max_events) const noexcept {
  std::size_t found = 0;
  visit_newest_first([&](block_event const& each) {
    if (covers(each, address)) into[found++] = each;
    return found < max_events;
  });
  std::reverse(into, into + found);
  return found;
}

std::vector<block_event> block_history::all(void const* address) const {
  std::vector<block_event> found;
  visit_newest_first([&](block_event const& each) {
    if (covers(each, address)) found.push_back(each);
    return true;
  });
  std::ranges::reverse(found);
  return found;
}

block_event const* block_history::last_free(void const* pointer, std::optional<std::size_t> bytes) const noexcept {
  block_event const* found = nullptr;
  visit_newest_first([&](block_event const& each) {
    bool const right = each.what == block_event::kind::freed && each.pointer == pointer;
    if (right && (!bytes || *bytes == each.bytes)) found = &each;
    return !found;
  });
  return found;
}

} // namespace gpumem::detail
