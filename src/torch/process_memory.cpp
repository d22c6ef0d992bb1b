// The memory that each process uses on a device, from NVIDIA's management library (NVML). NVML is loaded at first use,
// since it comes with the driver and is missing on machines without a GPU.
// SPDX-License-Identifier: Apache-2.0
#include "process_memory.hpp"

#include <cuda_runtime_api.h>

#include <dlfcn.h>
#include <unistd.h>

#include <optional>
#include <vector>

namespace gpumem_torch {
namespace {

// One process of NVML's list, in the oldest form of the structure, which newer versions of NVML still support.
struct process_entry {
  unsigned process;
  unsigned long long bytes; // all bits are set if NVML does not know the number
};

// The functions of NVML that this file calls, and two of their results.
struct management_library {
  static constexpr int success = 0;
  static constexpr int insufficient_size = 7;

  int (*initialize)();
  int (*find_device)(char const* bus_id, void** device);
  int (*list_processes)(void* device, unsigned* count, process_entry* entries);
};

std::optional<management_library> load() {
  auto* const library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (!library) return std::nullopt;
  management_library const found{
      reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2")),
      reinterpret_cast<int (*)(char const*, void**)>(dlsym(library, "nvmlDeviceGetHandleByPciBusId_v2")),
      reinterpret_cast<int (*)(void*, unsigned*, process_entry*)>(
          dlsym(library, "nvmlDeviceGetComputeRunningProcesses"))};
  bool const complete = found.initialize && found.find_device && found.list_processes;
  if (complete && found.initialize() == management_library::success) return found;
  return std::nullopt;
}

std::vector<process_entry> processes_on(DeviceIndex device) {
  static auto const nvml = load();
  char bus_id[32] = "";
  void* handle = nullptr;
  if (!nvml || cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device) != cudaSuccess ||
      nvml->find_device(bus_id, &handle) != management_library::success)
    return {};
  std::vector<process_entry> entries(8);
  for (int attempt = 0; attempt < 4; ++attempt) { // tries again, since processes may start meanwhile
    auto count = static_cast<unsigned>(entries.size());
    auto const listed = nvml->list_processes(handle, &count, entries.data());
    if (listed == management_library::success) {
      entries.resize(count);
      return entries;
    }
    if (listed != management_library::insufficient_size) break;
    entries.resize(count + 8);
  }
  return {};
}

} // namespace

std::string describe_processes(DeviceIndex device) {
  auto const this_process = static_cast<unsigned>(getpid());
  std::string text;
  for (auto const& one : processes_on(device)) {
    if (one.bytes == ~0ULL) continue;
    text += one.process == this_process ? "Including non-PyTorch memory, this process"
                                        : "Process " + std::to_string(one.process);
    text += " has " + c10::CachingAllocator::format_size(one.bytes) + " memory in use. ";
  }
  return text;
}

} // namespace gpumem_torch
