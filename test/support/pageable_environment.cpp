// Makes simulated devices that can access all memory of the host the driver of a test program, before its first test.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

namespace {

class pageable_environment final : public testing::Environment {
public:
  void SetUp() override { gpumem::simulator::load({.devices = 2, .pageable_memory = true}); }
};

[[maybe_unused]] auto* const registered = testing::AddGlobalTestEnvironment(new pageable_environment);

} // namespace
