// Poll queues and lists of them.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <utility>
module gpumem:poll_queue.impl;
import :poll_queue;
import :cuda;
import :event;

namespace gpumem::detail {

void completed_waits::push(pending_wait& point, CUresult result) noexcept {
  point.result_ = result;
  point.next_ = nullptr;
  (last_ ? last_->next_ : first_) = &point;
  last_ = &point;
  ++size_;
}

pending_wait* completed_waits::pop() noexcept {
  auto* const point = first_;
  if (!point) return nullptr;
  first_ = point->next_;
  if (!first_) last_ = nullptr;
  --size_;
  return point;
}

void poll_queue::push(pending_wait& point) noexcept {
  point.armed_ = true;
  point.next_ = nullptr;
  point.previous_ = last_;
  (last_ ? last_->next_ : first_) = &point;
  last_ = &point;
  if (point.urgency_ == latency::low) ++urgent_waits_;
}

void poll_queue::remove(pending_wait& point) noexcept {
  (point.previous_ ? point.previous_->next_ : first_) = point.next_;
  (point.next_ ? point.next_->previous_ : last_) = point.previous_;
  point.armed_ = false;
  if (point.urgency_ == latency::low) --urgent_waits_;
  if (polled_oldest_ == &point) polled_oldest_ = nullptr;
  if (polled_newest_ == &point) polled_newest_ = nullptr;
}

poll_request poll_queue::begin_poll() noexcept {
  is_polled_ = true;
  polled_oldest_ = first_;
  polled_newest_ = last_;
  return {this, first_->where_.event, last_->where_.event};
}

// If the newest event is complete, so are all before it. An error goes only to the oldest wait.
void poll_queue::end_poll(poll_request const& request, completed_waits& completed) noexcept {
  is_polled_ = false;
  auto* const oldest = std::exchange(polled_oldest_, nullptr);
  auto* const newest = std::exchange(polled_newest_, nullptr);
  if (newest && request.newest_result == CUDA_SUCCESS) {
    for (pending_wait* point = nullptr; point != newest;) {
      point = first_;
      remove(*point);
      completed.push(*point, CUDA_SUCCESS);
    }
  } else if (oldest && request.oldest_result != CUDA_ERROR_NOT_READY) {
    remove(*oldest);
    completed.push(*oldest, request.oldest_result);
  }
}

void poll_queue::fail_all(CUresult result, completed_waits& completed) noexcept {
  while (first_) {
    auto& point = *first_;
    remove(point);
    completed.push(point, result);
  }
}

void poll_queue_list::unlink(poll_queue& item) noexcept {
  (item.previous_ ? item.previous_->next_ : first_) = item.next_;
  (item.next_ ? item.next_->previous_ : last_) = item.previous_;
  --size_;
}

void poll_queue_list::append(poll_queue& item) noexcept {
  item.next_ = nullptr;
  item.previous_ = last_;
  (last_ ? last_->next_ : first_) = &item;
  last_ = &item;
  ++size_;
}

void poll_queue_list::move(poll_queue& item, poll_queue_list* to) noexcept {
  if (item.listed_in_) item.listed_in_->unlink(item);
  item.listed_in_ = to;
  if (to) to->append(item);
}

} // namespace gpumem::detail
