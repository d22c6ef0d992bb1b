// handle_table: handles of objects. The value of a freed handle is reused immediately: the next object gets the value
// that was freed last. The values of objects that ended with their context are not reused.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace simulated {

enum class handle_state { unknown, destroyed, live };

template <class T> class handle_table {
public:
  /// Returns a handle for `object`. recycled() counts the handles whose value was used before.
  void* insert(std::shared_ptr<T> object) {
    slot* place;
    if (free_.empty()) {
      place = &slots_.emplace_back();
      index_.emplace(place, place);
    } else {
      place = free_.back();
      free_.pop_back();
      if (place->used) ++recycled_;
    }
    place->used = true;
    place->object = std::move(object);
    return place;
  }

  [[nodiscard]] std::shared_ptr<T> const* find(void const* handle) const {
    auto found = index_.find(handle);
    return found == index_.end() || !found->second->object ? nullptr : &found->second->object;
  }

  [[nodiscard]] handle_state state(void const* handle) const {
    auto found = index_.find(handle);
    if (found == index_.end()) return handle_state::unknown;
    return found->second->object ? handle_state::live : handle_state::destroyed;
  }

  void erase(void const* handle) {
    slot* place = index_.at(handle);
    place->object.reset();
    free_.push_back(place);
  }

  /// Destroys an object with its context. Its handle stays destroyed, so that each later use of it is found.
  void end(void const* handle) { index_.at(handle)->object.reset(); }

  /// Destroys all objects. Later handles get the same values, in the same order, as the first handles of this table.
  void clear() {
    for (slot& place : slots_) place.object.reset();
    restart();
  }

  /// Forgets that handles were used and freed. Later handles get the values of this table that no object has, in the
  /// order in which the table made them: without objects, the same values as the first handles.
  void restart() {
    free_.clear();
    for (auto place = slots_.rbegin(); place != slots_.rend(); ++place) {
      if (place->object) continue;
      place->used = false;
      free_.push_back(&*place);
    }
    recycled_ = 0;
  }

  template <class Visit> void visit(Visit&& visit) {
    for (slot& place : slots_)
      if (place.object) visit(*place.object);
  }

  [[nodiscard]] std::uint64_t recycled() const noexcept { return recycled_; }

private:
  struct slot {
    std::shared_ptr<T> object;
    bool used = false;
    char spacing[32] = {}; // handles of a real driver are not close together either
  };
  std::deque<slot> slots_;
  std::vector<slot*> free_;
  std::unordered_map<void const*, slot*> index_;
  std::uint64_t recycled_ = 0;
};

} // namespace simulated
