// Devices to which managed memory cannot be prefetched.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <cstddef>

import gpumem;

TEST(without_concurrent_access, prefetch_is_refused_and_allocation_works) {
  gpumem::simulator::load({.concurrent_managed_access = false});
  gpumem::stream s{gpumem::device{0}};
  gpumem::prefetch_adaptor subject{gpumem::managed_resource{}};
  void* const p = subject.allocate(s, 4096);
  EXPECT_EQ(subject.refused(), 1u);
  EXPECT_FALSE(gpumem::prefetch(p, 4096, gpumem::memory_location::host(), s));
  subject.deallocate(s, p, 4096);
  EXPECT_FALSE(gpumem::device{0}.lost());
}
