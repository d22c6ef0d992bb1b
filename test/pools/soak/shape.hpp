// The settings of a soak run: sizes, live bytes, and how often memory moves to another stream or thread or is released.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpumem_test {

inline constexpr std::size_t KiB = 1024, MiB = 1024 * KiB;

struct shape {
  char const* name;
  std::size_t smallest, largest; // bounds; each power of two between them is equally likely
  std::size_t most_live;         // bytes per thread
  std::size_t limit;             // of the pool; 0: none
  bool pages;
  std::uint64_t elsewhere_one_in; // one request in n is on another stream than the thread's
  std::uint64_t handed_one_in;    // one free in n is made by the next thread on its stream
  std::uint64_t ebb_every;        // after n operations of a thread all threads free all blocks, and the pool is trimmed
};

inline constexpr shape shapes[] = {
    {"small sizes", 256, 4 * KiB, 128 * KiB, 448 * KiB, false, 16, 256, 300},
    {"mixed sizes", 256, 2 * MiB, 24 * MiB, 0, false, 16, 256, 300},
    {"handed over", 256, 512 * KiB, 8 * MiB, 0, false, 16, 12, 300},
    {"pages under a limit", 4 * KiB, 2 * MiB, 24 * MiB, 160 * MiB, true, 16, 256, 300},
};

} // namespace gpumem_test
