// Runs the tests of a heap in another process, which may hang, crash or lose the device's context.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "measure.hpp"

#include <functional>
#include <vector>

namespace heaps {

/// Runs the tests over heaps of this kind, and returns a result for each. After a crash or a hang another process runs
/// the tests that follow. After three of them, or after the budget, the rest is not run, and the notes say so. The
/// calling process must not have used CUDA. `done` is called after each test.
std::vector<result> run_apart(heap_kind const& kind, std::vector<test> const& tests, options const& with,
                              std::function<void(test const&, result const&)> const& done);

} // namespace heaps
