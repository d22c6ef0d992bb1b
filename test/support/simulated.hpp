// A fixture on the simulated device: two devices, and its checker must report nothing at the end.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/simulator.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

/// Loads the simulated device once per program, since gpumem's own streams live as long as the process.
class simulated : public testing::Test {
protected:
  static void SetUpTestSuite() {
    gpumem::simulator::options how;
    how.devices = 2;
    how.strict_pool_destroy = true; // the library waits for its frees itself
    gpumem::simulator::load(how);
  }
  void SetUp() override { gpumem::simulator::take_findings(); }
  void TearDown() override {
    EXPECT_EQ(gpumem::simulator::run_until_idle(), 0u) << "device work was left waiting";
    for (auto const& finding : gpumem::simulator::take_findings()) ADD_FAILURE() << finding.text;
  }

  /// Returns the bytes of device memory that are allocated from the driver, on all devices.
  static std::size_t device_bytes() { return gpumem::simulator::report().bytes_allocated; }
};
