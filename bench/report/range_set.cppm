// Address ranges without common bytes.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
export module report:range_set;

namespace report {

/// Ranges that touch are one, unless there is a wall between them. With `sizes` it also knows its largest range.
export template <bool sizes> class range_set {
public:
  void add(std::uint64_t begin, std::uint64_t end) {
    if (begin >= end) return;
    auto next = all_.upper_bound(begin);
    if (next != all_.begin() && touches(std::prev(next)->second, begin)) --next;
    while (next != all_.end() && touches(end, next->first)) {
      begin = std::min(begin, next->first);
      end = std::max(end, next->second);
      next = erase(next);
    }
    insert(next, begin, end);
  }

  /// Removes the bytes of this range that are in the set. Returns whether all of them were.
  bool remove(std::uint64_t begin, std::uint64_t end) {
    auto next = all_.upper_bound(begin);
    if (next != all_.begin() && std::prev(next)->second > begin) --next;
    bool const whole = next != all_.end() && next->first <= begin && next->second >= end;
    while (next != all_.end() && next->first < end) {
      auto const [first, last] = *next;
      next = erase(next);
      if (last > end) insert(next, end, last);
      if (first < begin) insert(all_.upper_bound(first), first, begin);
    }
    return whole;
  }

  /// Adds a wall between the byte at this address and the one before. Each needs a remove_wall() of its own.
  void add_wall(std::uint64_t address) { ++walls_[address]; }
  void remove_wall(std::uint64_t address) {
    auto const wall = walls_.find(address);
    if (wall != walls_.end() && --wall->second == 0) walls_.erase(wall);
  }

  std::uint64_t bytes() const noexcept { return bytes_; }
  std::uint64_t largest() const noexcept { return sizes_.empty() ? 0 : sizes_.rbegin()->first; }
  std::map<std::uint64_t, std::uint64_t> const& all() const noexcept { return all_; }

private:
  // Whether a range that ends at `end` and one that begins at `begin` are one.
  bool touches(std::uint64_t end, std::uint64_t begin) const {
    return end > begin || (end == begin && !walls_.contains(begin));
  }

  using place = std::map<std::uint64_t, std::uint64_t>::iterator;

  void insert(place next, std::uint64_t begin, std::uint64_t end) {
    all_.emplace_hint(next, begin, end);
    bytes_ += end - begin;
    if constexpr (sizes) ++sizes_[end - begin];
  }
  place erase(place at) {
    std::uint64_t const size = at->second - at->first;
    bytes_ -= size;
    if constexpr (sizes) {
      auto const found = sizes_.find(size);
      if (--found->second == 0) sizes_.erase(found);
    }
    return all_.erase(at);
  }

  std::map<std::uint64_t, std::uint64_t> all_; // from the first address to the one after the last
  std::map<std::uint64_t, std::size_t> sizes_; // how many ranges have this size
  std::map<std::uint64_t, std::size_t> walls_; // how many walls are at this address
  std::uint64_t bytes_ = 0;
};

} // namespace report
