// The driver functions for initialisation, errors and devices.
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdio>
#include <cstring>

#include "entry.hpp"

using namespace simulated;

namespace {

bool exists(simulation const& device, CUdevice ordinal) { return ordinal >= 0 && ordinal < device.options().devices; }

struct error_name {
  CUresult code;
  char const* name;
};

/// All errors of the driver's header; the build generates the list.
constexpr error_name error_names[] = {
#include "error_names.inc"
};

error_name const* look_up(CUresult code) {
  for (error_name const& known : error_names)
    if (known.code == code) return &known;
  return nullptr;
}

/// Returns an attribute that the options of the simulation set; nothing for all others.
std::optional<int> chosen_attribute(gpumem_simulator_options const& options, CUdevice_attribute attribute) {
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: return options.virtual_memory;
  case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS: return options.pageable_memory;
  case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS: return options.concurrent_managed_access;
  default: return std::nullopt;
  }
}

/// Converts a name to words: "CUDA_ERROR_OUT_OF_MEMORY" to "out of memory".
std::string in_words(char const* name) {
  std::string words = std::strcmp(name, "CUDA_SUCCESS") == 0 ? "NO_ERROR" : name;
  if (words.starts_with("CUDA_ERROR_")) words.erase(0, 11);
  for (char& letter : words) letter = letter == '_' ? ' ' : static_cast<char>(letter | 0x20);
  return words;
}

} // namespace

extern "C" {

CUresult cuInit(unsigned flags) {
  return enter<"cuInit", before_init>(
      [&](simulation& device) { return flags == 0 ? device.initialise() : CUDA_ERROR_INVALID_VALUE; });
}

CUresult cuDriverGetVersion(int* version) {
  return enter<"cuDriverGetVersion", before_init>([&](simulation&) {
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
  });
}

CUresult cuGetErrorName(CUresult code, char const** name) {
  error_name const* known = look_up(code);
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = known == nullptr ? nullptr : known->name;
  return known == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult code, char const** text) {
  static auto const* const texts = [] {
    auto* made = new std::unordered_map<int, std::string>;
    for (error_name const& known : error_names) made->emplace(known.code, in_words(known.name));
    return made;
  }();
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto const found = texts->find(code);
  *text = found == texts->end() ? nullptr : found->second.c_str();
  return found == texts->end() ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/// Finds no table. A real driver returns private tables here, through which NVIDIA's own runtime library calls it. The
/// tables are not public, so none are simulated.
CUresult cuGetExportTable(void const** table, CUuuid const*) {
  static std::atomic_flag reported;
  if (!reported.test_and_set())
    std::fputs(
        "gpumem simulator: NVIDIA's CUDA runtime does not run here, since it needs private tables of the driver. "
        "Link the program with the shared runtime (nvcc --cudart shared) and preload gpumem's libcudart.so.\n",
        stderr);
  if (table != nullptr) *table = nullptr;
  return CUDA_ERROR_NOT_FOUND;
}

CUresult cuDeviceGetCount(int* count) {
  return enter<"cuDeviceGetCount", quiet>([&](simulation& device) {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = device.options().devices;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGet(CUdevice* handle, int ordinal) {
  return enter<"cuDeviceGet", quiet>([&](simulation& device) {
    if (!exists(device, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *handle = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetName(char* name, int length, CUdevice ordinal) {
  return enter<"cuDeviceGetName", quiet>([&](simulation& device) {
    if (!exists(device, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(name, static_cast<std::size_t>(length), "gpumem simulated device %d", ordinal);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice ordinal) {
  return enter<"cuDeviceGetUuid", quiet>([&](simulation& device) {
    if (!exists(device, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(uuid->bytes, "gpumem-simulate", 15);
    uuid->bytes[15] = static_cast<char>(ordinal);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceTotalMem(size_t* bytes, CUdevice ordinal) {
  return enter<"cuDeviceTotalMem", quiet>([&](simulation& device) {
    if (!exists(device, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *bytes = device.allocations.capacity();
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice ordinal) {
  return enter<"cuDeviceGetAttribute", quiet>([&](simulation& device) {
    if (!exists(device, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    if (value == nullptr || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    *value = chosen_attribute(device.options(), attribute).value_or(device_attribute(attribute, ordinal));
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice ordinal) {
  return enter<"cuDeviceGetPCIBusId", quiet>([&](simulation& device) {
    if (!exists(device, ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    if (text == nullptr || length < 13) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", ordinal + 1);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice accessor, CUdevice peer) {
  return enter<"cuDeviceCanAccessPeer", quiet>([&](simulation& device) {
    if (!exists(device, accessor) || !exists(device, peer)) return CUDA_ERROR_INVALID_DEVICE;
    if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *can = accessor != peer;
    return CUDA_SUCCESS;
  });
}

} // extern "C"
