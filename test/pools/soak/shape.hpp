// What a soak does: sizes, how much lives at once, how often memory goes to another stream or thread, or back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpumem_test {

inline constexpr std::size_t KiB = 1024, MiB = 1024 * KiB;

struct shape {
  char const* name;
  std::size_t smallest, largest; // as many requests between them of each power of two
  std::size_t most_live;         // bytes of each thread
  std::size_t limit;             // of the pool; 0: none
  bool pages;
  std::uint64_t elsewhere_one_in; // requests on another stream than the thread's
  std::uint64_t handed_one_in;    // frees by the next thread, on its stream
  std::uint64_t ebb_every;        // operations of a thread: all free all, and the pool is trimmed
};

inline constexpr shape shapes[] = {
    {"small sizes", 256, 4 * KiB, 128 * KiB, 448 * KiB, false, 16, 256, 300},
    {"mixed sizes", 256, 2 * MiB, 24 * MiB, 0, false, 16, 256, 300},
    {"handed over", 256, 512 * KiB, 8 * MiB, 0, false, 16, 12, 300},
    {"pages under a limit", 4 * KiB, 2 * MiB, 24 * MiB, 160 * MiB, true, 16, 256, 300},
};

} // namespace gpumem_test
