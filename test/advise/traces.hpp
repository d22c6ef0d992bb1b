// Traces for the tests of the adviser.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace advise_test {

/// Writes the rows of a trace.
class trace_writer {
public:
  explicit trace_writer(std::uint64_t microseconds_a_row) : step_{microseconds_a_row} {}

  void allocate(std::uint64_t pointer, std::uint64_t bytes, unsigned thread = 1) {
    row("allocate", pointer, bytes, thread);
  }
  void free(std::uint64_t pointer, std::uint64_t bytes, unsigned thread = 1) { row("free", pointer, bytes, thread); }
  std::string const& text() const { return text_; }

private:
  void row(char const* action, std::uint64_t pointer, std::uint64_t bytes, unsigned thread) {
    std::array<char, 160> line{};
    time_ += step_;
    std::snprintf(line.data(), line.size(), "%u,%02d:%02d:%02d.%06d,%s,0x%llx,%llu,0\n", thread,
                  static_cast<int>(time_ / 3'600'000'000), static_cast<int>(time_ / 60'000'000 % 60),
                  static_cast<int>(time_ / 1'000'000 % 60), static_cast<int>(time_ % 1'000'000), action,
                  static_cast<unsigned long long>(pointer), static_cast<unsigned long long>(bytes));
    text_ += line.data();
  }

  std::uint64_t step_;
  std::uint64_t time_ = 0;
  std::string text_ = "Thread,Time,Action,Pointer,Size,Stream\n";
};

/// Phases of blocks of growing sizes: each phase frees half of the blocks before it, so that memory scatters. Between
/// them many small blocks come and go.
inline std::string scattered(std::uint64_t microseconds_a_row) {
  trace_writer trace{microseconds_a_row};
  std::vector<std::pair<std::uint64_t, std::uint64_t>> live;
  std::uint64_t pointer = 0x1000;
  for (std::uint64_t bytes = std::uint64_t{3} << 20; bytes < std::uint64_t{64} << 20; bytes = bytes * 3 / 2) {
    for (int i = 0; i < 16; ++i, pointer += 16) {
      trace.allocate(pointer, bytes);
      live.emplace_back(pointer, bytes);
    }
    for (int i = 0; i < 400; ++i) {
      trace.allocate(0x100, 1'024);
      trace.free(0x100, 1'024);
    }
    std::vector<std::pair<std::uint64_t, std::uint64_t>> kept;
    for (std::size_t i = 0; i < live.size(); ++i) {
      if (i % 2 == 0)
        kept.push_back(live[i]);
      else
        trace.free(live[i].first, live[i].second);
    }
    live = std::move(kept);
  }
  return trace.text();
}

/// A random program with up to `most_live` blocks of up to `most_bytes`.
inline std::string random_trace(unsigned seed, std::size_t rows, std::size_t most_live, std::uint64_t most_bytes) {
  std::mt19937 random{seed};
  trace_writer trace{20};
  std::vector<std::pair<std::uint64_t, std::uint64_t>> live;
  for (std::size_t i = 0; i < rows; ++i) {
    if (live.empty() || (live.size() < most_live && random() % 2 == 0)) {
      live.emplace_back(0x1000 + 16 * i, 1 + (std::uint64_t{random()} << 4) % most_bytes);
      trace.allocate(live.back().first, live.back().second);
    } else {
      std::swap(live[random() % live.size()], live.back());
      trace.free(live.back().first, live.back().second);
      live.pop_back();
    }
  }
  return trace.text();
}

/// Threads that each hold one block after the other, of 32 MiB, with `held` of them at once. The threads hold most at
/// the same time.
inline std::string crowded(unsigned threads, unsigned held) {
  trace_writer trace{20};
  constexpr std::uint64_t bytes = std::uint64_t{32} << 20;
  auto const pointer_of = [&](unsigned thread, unsigned block) { return 0x1000 + 16 * (thread * held + block); };
  for (int round = 0; round < 4; ++round) {
    for (unsigned thread = 0; thread < threads; ++thread) {
      for (unsigned block = 0; block < held; ++block) trace.allocate(pointer_of(thread, block), bytes, thread + 1);
    }
    for (unsigned thread = 0; thread < threads; ++thread) {
      for (unsigned block = 0; block < held; ++block) trace.free(pointer_of(thread, block), bytes, thread + 1);
    }
  }
  return trace.text();
}

} // namespace advise_test
