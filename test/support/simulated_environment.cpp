// Makes the simulated device the driver of a test program before its first test.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

namespace {

class simulated_environment final : public testing::Environment {
public:
  void SetUp() override { gpumem::simulator::load({.devices = 2}); }
};

[[maybe_unused]] auto* const registered = testing::AddGlobalTestEnvironment(new simulated_environment);

} // namespace
