// The page on which a process publishes the statistics of its pools, for programs such as gpumem-top.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace gpumem::detail {

/// The folder of all pages. A page is a file of the size of monitor_page, with the mode 0600. Its name is `gpumem.`,
/// the number of the user, a dot, and the number of the process; perhaps a dot and one more number. As long as the
/// process lives, it holds a write lock of fcntl() on the open file (F_OFD_SETLK).
inline constexpr char const* monitor_folder = "/dev/shm";

/// One pool. The numbers are those of `statistics`, in bytes and counts.
struct monitor_row {
  char name[32];       ///< the begin of the pool's name; ends with a zero
  std::int64_t device; ///< ordinal; -1: none
  std::uint64_t live;
  std::uint64_t reserved;
  std::uint64_t limit;
  std::uint64_t cached;
  std::uint64_t peak_live;
  std::uint64_t peak_reserved;
  std::uint64_t waiting;
  std::uint64_t waiting_bytes;
  std::uint64_t allocations;
  std::uint64_t misses; ///< allocations that no thread cache served
  std::uint64_t failures;
  std::uint64_t moves; ///< times that free pages moved
};

/// All words are 64 bits, and written one by one. `sequence` is odd while the process writes.
struct monitor_page {
  static constexpr std::uint64_t expected_magic = 0x31'65'67'61'70'6d'70'67; // "gpmpage1" in the order of bytes
  static constexpr std::size_t most_rows = 100;

  std::uint64_t magic;
  std::uint64_t sequence;
  std::uint64_t pools; ///< number of pools, of which the first `most_rows` have rows
  char program[16];    ///< the begin of the program's name; ends with a zero
  std::uint64_t unused[3];
  monitor_row rows[most_rows];
};

} // namespace gpumem::detail
