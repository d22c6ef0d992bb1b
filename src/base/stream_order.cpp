// Notes after which epochs of other streams one stream is ordered. A vector clock holds these epochs.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>
module gpumem:stream_order.impl;
import :stream_order;
import :stream_epochs;
import :sync;

namespace gpumem::detail {

epoch vector_clock::at(std::uint32_t index) const noexcept {
  auto const found = std::ranges::lower_bound(entries_, index, {}, &entry::index);
  return found != entries_.end() && found->index == index ? found->newest : 0;
}

void vector_clock::raise(std::uint32_t index, epoch newest) {
  auto const found = std::ranges::lower_bound(entries_, index, {}, &entry::index);
  if (found != entries_.end() && found->index == index) {
    found->newest = std::max(found->newest, newest);
  } else {
    entries_.insert(found, {index, newest});
  }
}

void vector_clock::join(vector_clock const& other) {
  for (auto const& e : other.entries_) raise(e.index, e.newest);
}

bool stream_order::is_after(std::uint32_t index, epoch e) const {
  sync::lock const held{mutex_};
  return clock_.at(index) >= e;
}

void stream_order::add(std::uint32_t index, epoch e, vector_clock const& before) {
  sync::lock const held{mutex_};
  clock_.join(before);
  clock_.raise(index, e);
}

vector_clock stream_order::snapshot() const {
  sync::lock const held{mutex_};
  return clock_;
}

void stream_order::clear() noexcept {
  sync::lock const held{mutex_};
  clock_ = {};
}

} // namespace gpumem::detail
