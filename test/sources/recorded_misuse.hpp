// Misuse that is looked at instead of aborting. Include it after `import gpumem;` and <vector>: it includes nothing
// itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

/// What was told since the last scope began.
inline std::vector<gpumem::misuse> seen;
inline void note(gpumem::misuse const& what) noexcept { seen.push_back(what); }

/// Takes misuse for a scope.
struct recorded_misuse {
  recorded_misuse() { seen.clear(); }
  ~recorded_misuse() { gpumem::set_misuse_handler(before); }
  gpumem::misuse_handler before = gpumem::set_misuse_handler(note);
};

} // namespace test
