// A device that reports a sticky error: a program of its own, since the loss is remembered for ever.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <cstddef>

import gpumem;

namespace {

class lost_device : public simulated {
protected:
  void TearDown() override {}
};

TEST_F(lost_device, is_told_and_frees_are_bookkeeping) {
  gpumem::cuda_resource subject{gpumem::device{1}};
  gpumem::stream stream{gpumem::device{1}};
  void* const p = subject.allocate(stream, 1024);
  void* const q = subject.allocate(stream, 1024);
  gpumem::simulator::sticky_error(CUDA_ERROR_ILLEGAL_ADDRESS);
  auto const got = subject.try_allocate(stream, 1024);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error(), (gpumem::failure{gpumem::outcome::device_lost, CUDA_ERROR_ILLEGAL_ADDRESS, 1024}));
  EXPECT_TRUE(subject.device().lost());
  EXPECT_THROW(subject.allocate(stream, 1024), gpumem::cuda_error);
  subject.deallocate(stream, p, 1024);
  subject.deallocate_sync(q, 1024);
  EXPECT_EQ(subject.figures().live, 0u);
  EXPECT_EQ(subject.figures().reserved, 0u);
  EXPECT_EQ(subject.figures().frees, 2u);
}

} // namespace
