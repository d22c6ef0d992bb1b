// Functions of errors, versions and devices.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstring>
#include <string_view>

#include "calls.hpp"

using namespace simulated_runtime;

namespace {

struct error_name {
  cudaError_t code;
  char const* name;
};

/// All errors of the runtime's header; the build generates the list.
constexpr error_name error_names[] = {
#include "runtime_error_names.inc"
};

/// A field of cudaDeviceProp that is an attribute of the device.
struct field {
  CUdevice_attribute attribute;
  void (*set)(cudaDeviceProp&, int);
};

constexpr field fields[] = {
#define GPUMEM_RUNTIME_FIELD(member, attribute)                                                                        \
  {CU_DEVICE_ATTRIBUTE_##attribute,                                                                                    \
   [](cudaDeviceProp& all, int value) { all.member = static_cast<decltype(all.member)>(value); }},
#include "device_fields.inc"
#undef GPUMEM_RUNTIME_FIELD
};

CUresult describe(driver_table const& cu, cudaDeviceProp& properties, CUdevice device) {
  properties = {};
  CUuuid uuid;
  CUresult result = cu.cuDeviceGetName(properties.name, sizeof properties.name, device);
  if (result == CUDA_SUCCESS) result = cu.cuDeviceGetUuid(&uuid, device);
  if (result == CUDA_SUCCESS) result = cu.cuDeviceTotalMem(&properties.totalGlobalMem, device);
  if (result != CUDA_SUCCESS) return result;
  static_assert(sizeof uuid == sizeof properties.uuid);
  std::memcpy(&properties.uuid, &uuid, sizeof uuid);
  for (field const& each : fields) {
    int value;
    result = cu.cuDeviceGetAttribute(&value, each.attribute, device);
    if (result != CUDA_SUCCESS) return result;
    each.set(properties, value);
  }
  return CUDA_SUCCESS;
}

CUresult current_device(driver_table const& cu, int* device) {
  CUresult const result = cu.cuCtxGetDevice(device);
  if (result == CUDA_SUCCESS) return result;
  *device = chosen_device();
  return result == CUDA_ERROR_INVALID_CONTEXT || result == CUDA_ERROR_CONTEXT_IS_DESTROYED ? CUDA_SUCCESS : result;
}

CUresult primary_of(driver_table const& cu, int device, CUcontext* context) {
  return cu.cuDevicePrimaryCtxRetain(context, device);
}

} // namespace

cudaError_t cudaGetLastError() { return take_error(); }
cudaError_t cudaPeekAtLastError() { return kept_error(); }

char const* cudaGetErrorName(cudaError_t error) {
  for (error_name const& known : error_names)
    if (known.code == error) return known.name;
  return "unrecognized error code";
}

/// Returns the driver's text for errors that the driver also has, otherwise the name.
char const* cudaGetErrorString(cudaError_t error) {
  driver_table const* cu = opened_driver();
  char const* text = nullptr;
  if (cu != nullptr && cu->cuGetErrorString(static_cast<CUresult>(error), &text) == CUDA_SUCCESS) return text;
  return cudaGetErrorName(error);
}

cudaError_t cudaDriverGetVersion(int* version) { return pass_plain<&driver_table::cuDriverGetVersion>(version); }

cudaError_t cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return keep(cudaErrorInvalidValue);
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) { return pass_plain<&driver_table::cuDeviceGetCount>(count); }

cudaError_t cudaGetDevice(int* device) {
  return without_context([&](driver_table const& cu) {
    return device == nullptr ? CUDA_ERROR_INVALID_VALUE : current_device(cu, device);
  });
}

cudaError_t cudaSetDevice(int device) {
  return without_context([&](driver_table const& cu) {
    CUcontext made;
    CUresult const result = primary_of(cu, device, &made);
    if (result != CUDA_SUCCESS) return result;
    choose_device(device);
    return cu.cuCtxSetCurrent(made);
  });
}

cudaError_t cudaInitDevice(int device, unsigned flags, unsigned init_flags) {
  return without_context([&](driver_table const& cu) {
    if ((init_flags & ~unsigned{cudaInitDeviceFlagsAreValid}) != 0) return CUDA_ERROR_INVALID_VALUE;
    CUcontext made;
    CUresult const result = primary_of(cu, device, &made);
    if (result != CUDA_SUCCESS || init_flags == 0) return result;
    return cu.cuDevicePrimaryCtxSetFlags(device, flags);
  });
}

cudaError_t cudaSetDeviceFlags(unsigned flags) {
  return without_context([&](driver_table const& cu) {
    int device;
    CUresult const result = current_device(cu, &device);
    return result == CUDA_SUCCESS ? cu.cuDevicePrimaryCtxSetFlags(device, flags) : result;
  });
}

cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  return without_context([&](driver_table const& cu) {
    int device;
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUresult const result = current_device(cu, &device);
    return result == CUDA_SUCCESS ? cu.cuDevicePrimaryCtxGetState(device, flags, nullptr) : result;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return without_context([&](driver_table const& cu) {
    return properties == nullptr ? CUDA_ERROR_INVALID_VALUE : describe(cu, *properties, device);
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return pass_plain<&driver_table::cuDeviceGetAttribute>(value, static_cast<CUdevice_attribute>(attribute), device);
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  return pass_plain<&driver_table::cuDeviceGetPCIBusId>(text, length, device);
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, char const* text) {
  return without_context([&](driver_table const& cu) {
    if (device == nullptr || text == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::array<char, 32> name{};
    for (int each = 0; cu.cuDeviceGetPCIBusId(name.data(), name.size(), each) == CUDA_SUCCESS; ++each)
      if (std::string_view(name.data()) == text) {
        *device = each;
        return CUDA_SUCCESS;
      }
    return CUDA_ERROR_INVALID_DEVICE;
  });
}

cudaError_t cudaDeviceSynchronize() { return pass<&driver_table::cuCtxSynchronize>(); }

cudaError_t cudaDeviceReset() {
  return without_context([&](driver_table const& cu) {
    int device;
    CUresult const result = current_device(cu, &device);
    return result == CUDA_SUCCESS ? cu.cuDevicePrimaryCtxReset(device) : result;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return pass<&driver_table::cuCtxGetStreamPriorityRange>(least, greatest);
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  return pass_plain<&driver_table::cuDeviceCanAccessPeer>(can, device, peer);
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  return in_context([&](driver_table const& cu) {
    CUcontext other;
    CUresult const result = primary_of(cu, peer, &other);
    return result == CUDA_SUCCESS ? cu.cuCtxEnablePeerAccess(other, flags) : result;
  });
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  return in_context([&](driver_table const& cu) {
    CUcontext other;
    CUresult const result = primary_of(cu, peer, &other);
    return result == CUDA_SUCCESS ? cu.cuCtxDisablePeerAccess(other) : result;
  });
}

cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind kind) {
  return {x, y, z, w, kind};
}
