// Random recordings of a pool, and what they say when everything is computed from the start. Include it after the
// imports: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace report_test {

using report::event;
using report::trace_action;

inline constexpr std::uint64_t granule = 256;

// Addresses are below `granules` granules. Frees, unmaps and moves concern what is there.
inline report::recording random_recording(std::uint64_t seed, std::size_t rows, std::size_t granules = 512) {
  constexpr std::uint64_t page = 16;
  std::mt19937_64 random{seed};
  report::recording made;
  made.name = made.file = "random";
  made.streams = {0, 0x10, 0x20};
  made.threads = {7, 8};
  made.labels = {"", "weights", "query", "cache"};
  made.memory = report::memory_source::log;
  std::vector<bool> mapped(granules), used(granules);
  std::map<std::uint64_t, std::uint64_t> live;
  std::uint64_t time = 0;
  auto const all = [](std::vector<bool> const& of, std::uint64_t first, std::uint64_t count, bool value) {
    for (std::uint64_t i = first; i < first + count; ++i)
      if (i >= of.size() || of[i] != value) return false;
    return true;
  };
  auto const set = [](std::vector<bool>& of, std::uint64_t first, std::uint64_t count, bool value) {
    for (std::uint64_t i = first; i < first + count; ++i) of[i] = value;
  };
  auto const add = [&](trace_action action, std::uint64_t first, std::uint64_t bytes) {
    made.events.push_back({time, first * granule, bytes, static_cast<std::uint16_t>(random() % 3),
                           static_cast<std::uint16_t>(random() % 2), static_cast<std::uint16_t>(random() % 4), action,
                           static_cast<report::served_by>(random() % 7)});
  };
  while (made.events.size() < rows) {
    time += random() % 100;
    std::uint64_t const first = random() % granules;
    switch (random() % 6) {
    case 0:
      if (std::uint64_t const at = first / page * page; all(mapped, at, page, false)) {
        add(trace_action::map, at, page * granule);
        set(mapped, at, page, true);
      }
      break;
    case 1:
      if (std::uint64_t const at = first / page * page;
          random() % 4 == 0 && all(mapped, at, page, true) && all(used, at, page, false)) {
        add(trace_action::unmap, at, page * granule);
        set(mapped, at, page, false);
        std::uint64_t const target = random() % granules / page * page;
        if (random() % 2 == 0 && all(mapped, target, page, false)) {
          add(trace_action::move, target, page * granule);
          set(mapped, target, page, true);
        }
      }
      break;
    case 2:
    case 3:
      if (!live.empty()) {
        auto const at = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
        add(trace_action::free, at->first, at->second);
        set(used, at->first, (at->second + granule - 1) / granule, false);
        live.erase(at);
      }
      break;
    default:
      std::uint64_t const count = 1 + random() % 20;
      if (all(mapped, first, count, true) && all(used, first, count, false)) {
        std::uint64_t const bytes = count * granule - random() % granule;
        add(trace_action::allocate, first, bytes);
        set(used, first, count, true);
        live[first] = bytes;
      }
    }
  }
  return made;
}

struct naive_block {
  std::uint64_t bytes;
  std::uint16_t stream, thread, label;
};

// The state after the rows up to `row`, from the start.
struct naive_state {
  naive_state(report::recording const& of, std::size_t row, std::size_t granules = 512)
      : mapped(granules), used(granules) {
    for (std::size_t i = 0; i <= row; ++i) {
      event const& next = of.events[i];
      std::uint64_t const first = next.pointer / granule, count = (next.bytes + granule - 1) / granule;
      auto const set = [&](std::vector<bool>& which, bool value) {
        for (std::uint64_t at = first; at < first + count; ++at) which[at] = value;
      };
      if (next.action == trace_action::allocate) {
        set(used, true);
        blocks[first] = {next.bytes, next.stream, next.thread, next.label};
      } else if (next.action == trace_action::free) {
        set(used, false);
        blocks.erase(first);
      } else {
        set(mapped, next.action != trace_action::unmap);
      }
    }
    when.row = row;
    when.microseconds = of.events[row].microseconds;
    when.blocks = blocks.size();
    for (auto const& [first, each] : blocks) when.live += each.bytes;
    std::uint64_t run = 0;
    for (std::size_t i = 0; i < granules; ++i) {
      when.reserved += mapped[i] ? granule : 0;
      run = mapped[i] && !used[i] ? run + granule : 0;
      when.free += mapped[i] && !used[i] ? granule : 0;
      when.largest_free = std::max(when.largest_free, run);
    }
  }

  std::vector<bool> mapped, used;
  std::map<std::uint64_t, naive_block> blocks;
  report::moment when;
};

inline void expect_same(report::moment const& seen, report::moment const& expected) {
  EXPECT_EQ(seen.row, expected.row);
  EXPECT_EQ(seen.microseconds, expected.microseconds);
  EXPECT_EQ(seen.live, expected.live);
  EXPECT_EQ(seen.blocks, expected.blocks);
  EXPECT_EQ(seen.reserved, expected.reserved);
  EXPECT_EQ(seen.free, expected.free);
  EXPECT_EQ(seen.largest_free, expected.largest_free);
}

} // namespace report_test
