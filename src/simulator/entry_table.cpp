// cuGetProcAddress: finds the function of a name and version; functions that are not simulated get a stub.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdio>
#include <string_view>

#include "entry.hpp"
#include "stubs.hpp"

using namespace simulated;

namespace {

/// The function that a name has from version `since` on. `per_thread` is its variant that takes stream 0 as the
/// per-thread default stream.
struct table_row {
  std::string_view name;
  int since;
  void* function;
  void* per_thread = nullptr;
};

CUstream own_default(CUstream handle) { return handle == nullptr ? CU_STREAM_PER_THREAD : handle; }
template <class T> T own_default(T argument) { return argument; }

/// The variant of an entry point that takes stream 0 as the per-thread default stream.
template <auto Function> struct per_thread_variant;
template <class... Arguments, CUresult (*Function)(Arguments...)> struct per_thread_variant<Function> {
  static CUresult call(Arguments... arguments) { return Function(own_default(arguments)...); }
};

template <auto Function> table_row row(std::string_view name, int version) {
  return {name, version, reinterpret_cast<void*>(Function)};
}

template <auto Function> table_row stream_row(std::string_view name, int version) {
  return {name, version, reinterpret_cast<void*>(Function),
          reinterpret_cast<void*>(&per_thread_variant<Function>::call)};
}

/// Converts a device number, or CU_DEVICE_CPU for the host, to a location. The older forms of cuMemPrefetchAsync and
/// cuMemAdvise take such a number.
CUmemLocation location_of(CUdevice device) {
  if (device == CU_DEVICE_CPU) return {CU_MEM_LOCATION_TYPE_HOST, 0};
  return {CU_MEM_LOCATION_TYPE_DEVICE, device};
}

CUresult prefetch_to_device(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream) {
  return cuMemPrefetchAsync(pointer, bytes, location_of(device), 0, stream);
}

CUresult advise_device(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUdevice device) {
  return cuMemAdvise(pointer, bytes, advice, location_of(device));
}

CUresult capture_info_without_edges(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                    CUgraphNode const** dependencies, size_t* count) {
  return cuStreamGetCaptureInfo(stream, status, id, graph, dependencies, nullptr, count);
}

CUresult dependencies_without_edges(CUgraphNode node, CUgraphNode* dependencies, size_t* count) {
  return cuGraphNodeGetDependencies(node, dependencies, nullptr, count);
}

CUresult proc_address_without_status(char const* name, void** function, int version, cuuint64_t flags) {
  return cuGetProcAddress(name, function, version, flags, nullptr);
}

#include "entry_rows.inc"

/// Returns the newest row of a name up to `version`; null if there is none. Sets `exists` if any row has the name.
table_row const* look_up(std::string_view name, int version, bool& exists) {
  table_row const* best = nullptr;
  exists = false;
  for (table_row const& candidate : rows()) {
    if (candidate.name != name) continue;
    exists = true;
    if (candidate.since <= version && (best == nullptr || candidate.since > best->since)) best = &candidate;
  }
  return best;
}

void* stub_for(std::string_view name) {
  for (auto const& [known, function] : stubs)
    if (name == known) return reinterpret_cast<void*>(function);
  return nullptr;
}

} // namespace

int gpumem_simulator_missing(char const* name) {
  std::fprintf(stderr, "gpumem simulator: %s is not simulated\n", name);
  return CUDA_ERROR_NOT_SUPPORTED;
}

extern "C" CUresult cuGetProcAddress(char const* name, void** function, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult* status) {
  if (name == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  bool exists;
  table_row const* row = look_up(name, version, exists);
  bool const own_streams = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  *function = nullptr;
  if (row != nullptr)
    *function = own_streams && row->per_thread != nullptr ? row->per_thread : row->function;
  else if (!exists)
    *function = stub_for(name);
  if (status != nullptr)
    *status = *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
              : exists             ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                   : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
