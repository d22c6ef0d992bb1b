// The memory of a pool, as the rows of a log show it. Include it after `import gpumem;` and log_rows.hpp: it includes
// nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

class mapped_memory {
public:
  /// Applies all rows of a log. Expects that each block lies in mapped memory, and that no memory is mapped twice.
  void apply(std::string text) {
    for (auto const& row : read_log(std::move(text))) apply(row);
  }
  void apply(gpumem::extend::trace_record const& row) {
    using enum gpumem::extend::trace_action;
    if (row.action == map) add(row.pointer, row.bytes);
    if (row.action == unmap) remove(row.pointer, row.bytes);
    if (row.action == move) {
      EXPECT_TRUE(contains(row.stream, row.bytes)) << "pages move from where none are";
      remove(row.stream, row.bytes);
      add(row.pointer, row.bytes);
      ++moves_;
    }
    unmaps_ += row.action == unmap;
    if (row.action == allocate) EXPECT_TRUE(contains(row.pointer, row.bytes)) << "a block outside the memory";
  }

  bool contains(std::uint64_t base, std::uint64_t bytes) const {
    auto const after = runs_.upper_bound(base);
    return after != runs_.begin() && base + bytes <= std::prev(after)->second;
  }
  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    for (auto const& [begin, end] : runs_) sum += end - begin;
    return sum;
  }
  std::size_t moves() const { return moves_; }
  std::size_t unmaps() const { return unmaps_; }

private:
  void add(std::uint64_t begin, std::uint64_t bytes) {
    auto end = begin + bytes;
    auto next = runs_.lower_bound(begin);
    EXPECT_TRUE(next == runs_.end() || next->first >= end) << "memory that is mapped already";
    if (next != runs_.end() && next->first == end) {
      end = next->second;
      next = runs_.erase(next);
    }
    if (next != runs_.begin()) {
      auto& before = *std::prev(next);
      EXPECT_LE(before.second, begin) << "memory that is mapped already";
      if (before.second == begin) {
        before.second = end;
        return;
      }
    }
    runs_.emplace(begin, end);
  }
  void remove(std::uint64_t begin, std::uint64_t bytes) {
    EXPECT_TRUE(contains(begin, bytes)) << "memory that is not mapped";
    if (!contains(begin, bytes)) return;
    auto const at = std::prev(runs_.upper_bound(begin));
    auto const [first, last] = *at;
    runs_.erase(at);
    if (first < begin) runs_.emplace(first, begin);
    if (begin + bytes < last) runs_.emplace(begin + bytes, last);
  }

  std::map<std::uint64_t, std::uint64_t> runs_; // from the first address to the one after the last
  std::size_t moves_ = 0, unmaps_ = 0;
};

} // namespace test
