// Searches the memory map of the process for a libcuda other than the simulated one.
// SPDX-License-Identifier: Apache-2.0
#include "real_driver.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace simulated {

namespace {

std::string own_path() {
  Dl_info here{};
  if (::dladdr(reinterpret_cast<void const*>(&real_driver_in_use), &here) == 0) return {};
  std::error_code failed;
  return std::filesystem::weakly_canonical(here.dli_fname, failed).string();
}

} // namespace

std::string real_driver_in_use() {
  char const* folder = std::getenv("GPUMEM_SIMULATOR_DEVICE_FILES");
  std::filesystem::path const control = std::filesystem::path(folder != nullptr ? folder : "/dev") / "nvidiactl";
  std::error_code failed;
  if (!std::filesystem::exists(control, failed)) return {};
  std::string const own = own_path();
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    auto const slash = line.find('/');
    if (slash == std::string::npos) continue;
    std::string const path = line.substr(slash);
    if (path != own && std::filesystem::path(path).filename().string().starts_with("libcuda.so")) return path;
  }
  return {};
}

} // namespace simulated
