// Makes the simulated device the driver of a test under schedules: a call that has to wait lets other threads run.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/simulator.hpp>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

import gpumem;

namespace {

class scheduled_environment final : public testing::Environment {
public:
  void SetUp() override {
    gpumem::simulator::load({.devices = 2});
    gpumem::simulator::set_schedule_hooks(nullptr, [](void*) { return gpumem::detail::schedule::blocked(); }, nullptr);
  }
};

[[maybe_unused]] auto* const registered = testing::AddGlobalTestEnvironment(new scheduled_environment);

} // namespace
