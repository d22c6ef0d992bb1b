// A fixture with a parking_resource, a stream, and an executor that the test runs. Include it after `import gpumem;`
// and the support headers: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

class waiter_fixture : public testing::Test {
protected:
  void TearDown() override { EXPECT_EQ(resource.state().used(), 0u); }

  gpumem::stream stream{gpumem::device{0}};
  parking_resource resource{1024};
  manual_executor executor;
};

} // namespace test
