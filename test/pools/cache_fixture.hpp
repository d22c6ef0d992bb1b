// For the tests of the caches: two streams with no counted frees, and blocks as a pool would have allocated them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "upstream.hpp"

#include <cstddef>
#include <deque>

import gpumem;

namespace gpumem_test {

class cache_fixture : public simulated_test {
protected:
  using block = gpumem::detail::block;

  cache_fixture() {
    for (auto const* const each : {&a, &b}) clear_counts(*each);
  }
  void TearDown() override {
    for (auto const* const each : {&a, &b}) clear_counts(*each);
    simulated_test::TearDown();
  }
  static auto& of(gpumem::stream const& s) { return s.key().identity().timeline(); }
  // An event sets the counts of frees to 0. Without it a later stream, with the same timeline, would go on counting.
  static void clear_counts(gpumem::stream const& on) {
    of(on).prepare();
    EXPECT_GT(of(on).record_later(on.get()), 0u);
    gpumem::simulator::run_until_idle();
    of(on).poll();
  }
  // Returns a live block, as a pool with one size class for each small and medium size would have allocated it.
  block& allocated(std::size_t bytes) {
    auto const size = gpumem::detail::size_class::of(bytes);
    auto& one = blocks.emplace_back();
    one.bytes = size.bytes;
    one.class_number = size.number;
    one.requested = bytes;
    one.set_state(gpumem::detail::block_state::allocated);
    return one;
  }

  gpumem::stream a{gpumem::device::current()}, b{gpumem::device::current()};
  std::deque<block> blocks;
};

} // namespace gpumem_test
