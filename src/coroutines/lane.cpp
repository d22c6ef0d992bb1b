// Points in order, and the lists of those who have some.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <utility>
module gpumem:lane.impl;
import :lane;
import :cuda;
import :event;

namespace gpumem::detail {

void told_points::push(armed_point& point, CUresult result) noexcept {
  point.result_ = result;
  point.next_ = nullptr;
  (last_ ? last_->next_ : first_) = &point;
  last_ = &point;
  ++size_;
}

armed_point* told_points::pop() noexcept {
  auto* const point = first_;
  if (!point) return nullptr;
  first_ = point->next_;
  if (!first_) last_ = nullptr;
  --size_;
  return point;
}

void lane::push(armed_point& point) noexcept {
  point.armed_ = true;
  point.next_ = nullptr;
  point.previous_ = last_;
  (last_ ? last_->next_ : first_) = &point;
  last_ = &point;
  if (point.urgency_ == latency::low) ++urgent_points_;
}

void lane::remove(armed_point& point) noexcept {
  (point.previous_ ? point.previous_->next_ : first_) = point.next_;
  (point.next_ ? point.next_->previous_ : last_) = point.previous_;
  point.armed_ = false;
  if (point.urgency_ == latency::low) --urgent_points_;
  if (asked_oldest_ == &point) asked_oldest_ = nullptr;
  if (asked_newest_ == &point) asked_newest_ = nullptr;
}

lane_question lane::ask() noexcept {
  asked_ = true;
  asked_oldest_ = first_;
  asked_newest_ = last_;
  return {this, first_->where_.event, last_->where_.event};
}

// The newest being complete, all before it are; an error is told to the oldest alone.
void lane::answer(lane_question const& question, told_points& told) noexcept {
  asked_ = false;
  auto* const oldest = std::exchange(asked_oldest_, nullptr);
  auto* const newest = std::exchange(asked_newest_, nullptr);
  if (newest && question.newest_result == CUDA_SUCCESS) {
    for (armed_point* point = nullptr; point != newest;) {
      point = first_;
      remove(*point);
      told.push(*point, CUDA_SUCCESS);
    }
  } else if (oldest && question.oldest_result != CUDA_ERROR_NOT_READY) {
    remove(*oldest);
    told.push(*oldest, question.oldest_result);
  }
}

void lane::tell_all(CUresult result, told_points& told) noexcept {
  while (first_) {
    auto& point = *first_;
    remove(point);
    told.push(point, result);
  }
}

void lane_list::unlink(lane& item) noexcept {
  (item.previous_ ? item.previous_->next_ : first_) = item.next_;
  (item.next_ ? item.next_->previous_ : last_) = item.previous_;
  --size_;
}

void lane_list::append(lane& item) noexcept {
  item.next_ = nullptr;
  item.previous_ = last_;
  (last_ ? last_->next_ : first_) = &item;
  last_ = &item;
  ++size_;
}

void lane_list::move(lane& item, lane_list* to) noexcept {
  if (item.listed_in_) item.listed_in_->unlink(item);
  item.listed_in_ = to;
  if (to) to->append(item);
}

} // namespace gpumem::detail
