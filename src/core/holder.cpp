// Holders' ages, and those that wait for something that is not memory.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <cstdint>
module gpumem:holder.impl;
import :holder;

namespace gpumem {

std::uint64_t holder::next_age() noexcept {
  static constinit std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

void holder_list::mark(holder& item) noexcept {
  if (item.marks_++ > 0) return;
  item.previous_ = nullptr;
  item.next_ = first_;
  if (first_) first_->previous_ = &item;
  first_ = &item;
}

void holder_list::unmark(holder& item) noexcept {
  if (--item.marks_ > 0) return;
  (item.previous_ ? item.previous_->next_ : first_) = item.next_;
  if (item.next_) item.next_->previous_ = item.previous_;
}

} // namespace gpumem
