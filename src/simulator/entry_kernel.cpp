// Entry points of modules and kernels. Kernels do not run: a launch is work of a fixed duration that touches no memory.
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstdio>
#include <memory>
#include <utility>

#include "entry.hpp"

using namespace simulated;

namespace {

constexpr std::uint64_t nominal_duration = 10'000;

template <class Handle> CUresult make(simulation& device, Handle* handle) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *handle = reinterpret_cast<Handle>(device.modules.insert(std::make_shared<int>(0)));
  return CUDA_SUCCESS;
}

template <class Handle> bool alive(simulation const& device, Handle handle) {
  return device.modules.find(handle) != nullptr;
}

template <class Handle> CUresult unload(simulation& device, Handle handle) {
  if (!alive(device, handle)) return CUDA_ERROR_INVALID_HANDLE;
  device.modules.erase(handle);
  return CUDA_SUCCESS;
}

/// Says once per process that kernels do not run.
void tell_of_kernels(char const* call) {
  static std::atomic_flag reported;
  if (reported.test_and_set()) return;
  std::fprintf(stderr,
               "gpumem simulator: kernels do not run here: %s enqueues work that touches no memory. In its place, "
               "cuLaunchHostFunc or gpumem::simulator::work runs a function of the host on the stream.\n",
               call);
}

template <entry_name Name>
CUresult launch(CUstream stream, void const* function, bool sizes_are_good, bool may_overlap = false) {
  return enter_on<Name>(stream, [&](simulation& device, stream_ptr const& stream) {
    if (!sizes_are_good) return CUDA_ERROR_INVALID_VALUE;
    if (!alive(device, function)) return CUDA_ERROR_INVALID_HANDLE;
    tell_of_kernels(Name.text);
    operation work;
    work.action = "kernel";
    work.is_kernel = true;
    work.may_overlap = may_overlap;
    work.duration = nominal_duration;
    return device.enqueue(stream, std::move(work));
  });
}

template <entry_name Name, class Handle> CUresult make_of(Handle* handle, void const* parent, bool arguments_are_good) {
  return enter<Name, needs_context>([&](simulation& device) {
    if (!arguments_are_good) return CUDA_ERROR_INVALID_VALUE;
    if (!alive(device, parent)) return CUDA_ERROR_INVALID_HANDLE;
    return make(device, handle);
  });
}

} // namespace

extern "C" {

CUresult cuModuleLoad(CUmodule* module, char const* path) {
  return enter<"cuModuleLoad", (needs_context | unsafe_in_capture)>(
      [&](simulation& device) { return path == nullptr ? CUDA_ERROR_INVALID_VALUE : make(device, module); });
}

CUresult cuModuleLoadData(CUmodule* module, void const* image) {
  return enter<"cuModuleLoadData", (needs_context | unsafe_in_capture)>(
      [&](simulation& device) { return image == nullptr ? CUDA_ERROR_INVALID_VALUE : make(device, module); });
}

CUresult cuModuleLoadDataEx(CUmodule* module, void const* image, unsigned, CUjit_option*, void**) {
  return enter<"cuModuleLoadDataEx", (needs_context | unsafe_in_capture)>(
      [&](simulation& device) { return image == nullptr ? CUDA_ERROR_INVALID_VALUE : make(device, module); });
}

CUresult cuModuleLoadFatBinary(CUmodule* module, void const* image) {
  return enter<"cuModuleLoadFatBinary", (needs_context | unsafe_in_capture)>(
      [&](simulation& device) { return image == nullptr ? CUDA_ERROR_INVALID_VALUE : make(device, module); });
}

CUresult cuModuleUnload(CUmodule module) {
  return enter<"cuModuleUnload", needs_context>([&](simulation& device) { return unload(device, module); });
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, char const* name) {
  return make_of<"cuModuleGetFunction">(function, module, name != nullptr);
}

CUresult cuLibraryLoadData(CUlibrary* library, void const* code, CUjit_option*, void**, unsigned, CUlibraryOption*,
                           void**, unsigned) {
  return enter<"cuLibraryLoadData">(
      [&](simulation& device) { return code == nullptr ? CUDA_ERROR_INVALID_VALUE : make(device, library); });
}

CUresult cuLibraryUnload(CUlibrary library) {
  return enter<"cuLibraryUnload">([&](simulation& device) { return unload(device, library); });
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, char const* name) {
  return enter<"cuLibraryGetKernel">([&](simulation& device) {
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return alive(device, library) ? make(device, kernel) : CUDA_ERROR_INVALID_HANDLE;
  });
}

CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library) {
  return make_of<"cuLibraryGetModule">(module, library, true);
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  return make_of<"cuKernelGetFunction">(function, kernel, true);
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute, int) {
  return enter<"cuFuncSetAttribute">(
      [&](simulation& device) { return alive(device, function) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; });
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned, CUstream stream, void**, void**) {
  bool const sizes_are_good = grid_x != 0 && grid_y != 0 && grid_z != 0 && block_x != 0 && block_y != 0 && block_z != 0;
  return launch<"cuLaunchKernel">(stream, function, sizes_are_good);
}

CUresult cuLaunchKernelEx(CUlaunchConfig const* config, CUfunction function, void**, void**) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  bool const sizes_are_good = config->gridDimX != 0 && config->gridDimY != 0 && config->gridDimZ != 0 &&
                              config->blockDimX != 0 && config->blockDimY != 0 && config->blockDimZ != 0;
  bool may_overlap = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
      may_overlap = config->attrs[i].value.programmaticStreamSerializationAllowed != 0;
  }
  return launch<"cuLaunchKernelEx">(config->hStream, function, sizes_are_good, may_overlap);
}

} // extern "C"
