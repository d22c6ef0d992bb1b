// A row of the table of public functions, and the runs of a row in which one host allocation is refused.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace no_memory {

inline constexpr std::size_t KiB = 1024, MiB = 1024 * KiB;

/// One row: the public names that its body uses, separated by blanks, and the body. The body may throw std::bad_alloc
/// or an error of the library. check_rows.py reads the names from the sources.
struct row {
  std::string names;
  std::function<void()> body;
  /// Whether memory may stay reserved: without host memory, the last free on a stream may leave no event behind. Memory
  /// of that stream then stays in use, and a driver's pool is never destroyed.
  bool keeps = false;
};

/// Runs the row with its n-th host allocation refused, for n = 1, 2, … until a run has no refusal. `only_one`: later
/// allocations of the run succeed again. Each run has a new thread, which also calls `before` and `after`.
void run(row const& which, bool only_one, std::function<void()> const& before, std::function<void()> const& after);

} // namespace no_memory
