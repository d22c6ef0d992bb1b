// Records misuse instead of aborting. Include it after `import gpumem;` and <vector>: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

/// Misuse reported since the last recorded_misuse was made.
inline std::vector<gpumem::misuse> seen;
inline void note(gpumem::misuse const& what) noexcept { seen.push_back(what); }

/// Records misuse during its lifetime.
struct recorded_misuse {
  recorded_misuse() { seen.clear(); }
  ~recorded_misuse() { gpumem::set_misuse_handler(before); }
  gpumem::misuse_handler before = gpumem::set_misuse_handler(note);
};

} // namespace test
