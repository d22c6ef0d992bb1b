// The waits of a poll queue, and the list of poll queues.
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
  waits_.push_back(point);
  ++size_;
}

pending_wait* completed_waits::pop() noexcept {
  auto* const point = waits_.first();
  if (!point) return nullptr;
  waits_.remove(*point);
  --size_;
  return point;
}

void poll_queue::push(pending_wait& point) noexcept {
  point.armed_ = true;
  waits_.push_back(point);
  if (point.urgency_ == latency::low) ++urgent_waits_;
}

void poll_queue::remove(pending_wait& point) noexcept {
  waits_.remove(point);
  point.armed_ = false;
  if (point.urgency_ == latency::low) --urgent_waits_;
  if (polled_oldest_ == &point) polled_oldest_ = nullptr;
  if (polled_newest_ == &point) polled_newest_ = nullptr;
}

poll_request poll_queue::begin_poll() noexcept {
  polled_oldest_ = waits_.first();
  polled_newest_ = waits_.last();
  return {this, polled_oldest_->where_.event, polled_newest_->where_.event};
}

// If the newest event is complete, all events before it are complete too. An error goes only to the oldest wait.
bool poll_queue::end_poll(poll_request const& request, completed_waits& completed) noexcept {
  auto* const oldest = std::exchange(polled_oldest_, nullptr);
  auto* const newest = std::exchange(polled_newest_, nullptr);
  if (newest && request.newest_result == CUDA_SUCCESS) {
    for (pending_wait* point = nullptr; point != newest;) {
      point = waits_.first();
      remove(*point);
      completed.push(*point, CUDA_SUCCESS);
    }
    return true;
  }
  if (!oldest || request.oldest_result == CUDA_ERROR_NOT_READY) return false;
  remove(*oldest);
  completed.push(*oldest, request.oldest_result);
  return true;
}

void poll_queue::fail_all(CUresult result, completed_waits& completed) noexcept {
  while (auto* const point = waits_.first()) {
    remove(*point);
    completed.push(*point, result);
  }
}

void poll_queue_list::move(poll_queue& item, poll_queue_list* to) noexcept {
  if (auto* const from = std::exchange(item.listed_in_, to)) {
    if (from->next_ == &item) from->next_ = item.links_.next;
    from->queues_.remove(item);
    --from->size_;
  }
  if (to) {
    to->queues_.push_back(item);
    ++to->size_;
  }
}

poll_queue& poll_queue_list::next_in_turn() noexcept {
  auto& item = next_ ? *next_ : *queues_.first();
  next_ = item.links_.next;
  return item;
}

} // namespace gpumem::detail
