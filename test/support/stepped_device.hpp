// A fixture with two simulated devices that the test steps by hand, so that work completes only when the test says so.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

namespace test {

class stepped_device : public testing::Test {
protected:
  static void SetUpTestSuite() { gpumem::simulator::load({.devices = 2, .mode = gpumem::simulator::stepping::manual}); }
  void TearDown() override {
    gpumem::simulator::run_until_idle();
    EXPECT_NO_THROW(gpumem::simulator::expect_silent());
  }
};

} // namespace test
