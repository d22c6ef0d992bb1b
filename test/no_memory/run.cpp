// Runs rows with one host allocation after the other refused.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/error.hpp>

#include <gtest/gtest.h>

#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>

#include "../support/failing_new.hpp"
#include "rows.hpp"

namespace {

constexpr int most_allocations = 2000;

/// Returns whether an allocation was refused. An end that no caller expects fails the test.
bool attempt(no_memory::row const& which, int successes, test::failing how) {
  std::string wrong;
  bool refused = false;
  {
    test::failing_new const scarce{successes, how};
    try {
      which.body();
    } catch (std::bad_alloc const&) {
    } catch (std::exception const& error) {
      refused = test::failing_new::refused();
      test::failing_new const plenty{-1};
      wrong = error.what();
    }
    refused = refused || test::failing_new::refused();
  }
  if (!wrong.empty() && !refused) ADD_FAILURE() << which.names << " fails with memory: " << wrong;
  return refused;
}

} // namespace

void no_memory::run(row const& which, bool only_one, std::function<void()> const& before,
                    std::function<void()> const& after) {
  for (int n = 0; n < most_allocations; ++n) {
    SCOPED_TRACE(which.names + ", allocation " + std::to_string(n + 1));
    bool refused = false;
    std::thread{[&] {
      before();
      refused = attempt(which, n, only_one ? test::failing::only_one : test::failing::all);
      after();
    }}.join();
    if (!refused || testing::Test::HasFailure()) return;
  }
  ADD_FAILURE() << which.names << " never succeeds";
}
