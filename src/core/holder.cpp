// The ages of holders, and the list of the holders of one resource.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <cstdint>
#include <mutex>
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
  link_last(item);
}

void holder_list::remove(holder& item) noexcept {
  sync::spin_lock const held{mutex_};
  unlink(item);
}

void holder_list::mark(holder& item) noexcept {
  sync::spin_lock const held{mutex_};
  if (item.marks_++ > 0) return;
  ++marked_;
  unlink(item);
  link_first(item);
}

void holder_list::unmark(holder& item) noexcept {
  sync::spin_lock const held{mutex_};
  if (--item.marks_ > 0) return;
  --marked_;
  unlink(item);
  link_last(item);
}

void holder_list::link_first(holder& item) noexcept {
  item.previous_ = nullptr;
  item.next_ = first_;
  (first_ ? first_->previous_ : last_) = &item;
  first_ = &item;
}

void holder_list::link_last(holder& item) noexcept {
  item.previous_ = last_;
  item.next_ = nullptr;
  (last_ ? last_->next_ : first_) = &item;
  last_ = &item;
}

void holder_list::unlink(holder& item) noexcept {
  (item.previous_ ? item.previous_->next_ : first_) = item.next_;
  (item.next_ ? item.next_->previous_ : last_) = item.previous_;
}

} // namespace gpumem
