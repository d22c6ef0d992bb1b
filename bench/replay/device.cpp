// Chooses a device, and loads the simulated driver.
// SPDX-License-Identifier: Apache-2.0
module;

#include <gpumem/simulator.hpp>

#include <array>
#include <stdexcept>
#include <string>

#include <cuda.h>

module replay:device.impl;

import gpumem;
import :device;
import :options;

namespace replay {

namespace detail {

bool serve_simulated(device_choice choice) {
  gpumem::simulator::options const how{.mode = gpumem::simulator::stepping::immediate};
  switch (choice) {
  case device_choice::simulated: gpumem::simulator::load(how); return true;
  case device_choice::automatic: return gpumem::simulator::auto_load(how);
  case device_choice::cuda: return false;
  }
  return false;
}

std::string device_name(gpumem::device device) {
  CUdevice handle{};
  std::array<char, 256> name{};
  gpumem::driver_api::check(gpumem::driver_api::driver().device_get(&handle, device.ordinal()), "find the device");
  gpumem::driver_api::check(
      gpumem::driver_api::driver().device_get_name(name.data(), static_cast<int>(name.size()), handle),
      "name the device");
  return name.data();
}

} // namespace detail

chosen_device choose_device(device_choice choice) {
  bool const simulated = detail::serve_simulated(choice);
  if (!gpumem::driver_api::driver_available()) {
    throw std::runtime_error("no CUDA driver found; --device simulated needs none");
  }
  gpumem::device const device{0};
  return {device, simulated, simulated ? "the simulated device" : detail::device_name(device)};
}

void accept_unordered(bool frees_elsewhere) {
  using kind = gpumem::simulator::finding_kind;
  for (auto const& found : gpumem::simulator::take_findings()) {
    if (found.kind == kind::unordered_free || (frees_elsewhere && found.kind == kind::unordered_reuse)) continue;
    throw std::runtime_error("the simulated device found: " + found.text);
  }
}

} // namespace replay
