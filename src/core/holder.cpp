// Holders (units of work that hold memory of a resource): their ages, and the list of the holders of one resource.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <cstdint>
module gpumem:holder.impl;
import :holder;
import :sync;

namespace gpumem {

std::uint64_t holder::next_age() noexcept {
  static constinit std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

void holder_list::add(holder& item) noexcept {
  sync::spin_lock const held{mutex_};
  items_.push_back(item);
}

void holder_list::remove(holder& item) noexcept {
  sync::spin_lock const held{mutex_};
  items_.remove(item);
}

void holder_list::mark(holder& item) noexcept {
  sync::spin_lock const held{mutex_};
  if (item.marks_++ > 0) return;
  ++marked_;
  items_.remove(item);
  items_.push_front(item);
}

void holder_list::unmark(holder& item) noexcept {
  sync::spin_lock const held{mutex_};
  if (--item.marks_ > 0) return;
  --marked_;
  items_.remove(item);
  items_.push_back(item);
}

} // namespace gpumem
