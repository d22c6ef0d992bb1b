// Entry points of copies and fills.
// SPDX-License-Identifier: Apache-2.0
#include <limits>
#include <span>

#include "entry.hpp"
#include "transfers.hpp"

using namespace simulated;

namespace {

std::uint64_t address(void const* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

template <entry_name Name> CUresult copy_now(std::uint64_t target, std::uint64_t source, std::size_t bytes) {
  return enter_on<Name, (needs_context | unsafe_in_capture)>(
      CU_STREAM_LEGACY, [&](simulation& device, stream_ptr const& stream) GPUMEM_REQUIRES(simulation_mutex) {
        return transfer(device, stream, target, source, bytes, true, Name.text);
      });
}

template <entry_name Name>
CUresult copy_later(CUstream handle, std::uint64_t target, std::uint64_t source, std::size_t bytes) {
  return enter_on<Name>(handle, [&](simulation& device, stream_ptr const& stream) GPUMEM_REQUIRES(simulation_mutex) {
    return transfer(device, stream, target, source, bytes, false, Name.text);
  });
}

/// Returns the ordinal of the context's device; -1 if there is no such context.
int device_of(simulation const& device, CUcontext handle) {
  for (auto const& home : device.primaries)
    if (handle != nullptr && home->handle() == handle) return home->device;
  return -1;
}

/// Copies between the memory of two contexts. Each context's device touches its own side, so neither needs access to
/// the other side.
CUresult copy_between(simulation& device, stream_ptr const& stream, std::uint64_t destination, CUcontext target,
                      std::uint64_t source_address, CUcontext source, std::size_t bytes, bool wait, char const* call)
    GPUMEM_REQUIRES(simulation_mutex) {
  copying_devices const devices{device_of(device, target), device_of(device, source)};
  if (devices.target < 0 || devices.source < 0) return CUDA_ERROR_INVALID_CONTEXT;
  return transfer(device, stream, destination, source_address, bytes, wait, call, source_access::usual, devices);
}

template <entry_name Name, unsigned Rules = plain>
CUresult fill_on(CUstream handle, CUdeviceptr target, std::uint32_t value, unsigned width, std::size_t count) {
  return enter_on<Name, Rules>(handle, [&](simulation& device, stream_ptr const& stream) {
    return fill(device, stream, target, value, width, count);
  });
}

struct copy_batch_view {
  std::span<CUdeviceptr const> targets, sources;
  std::span<std::size_t const> bytes;
  std::span<CUmemcpyAttributes const> attributes;
  std::span<std::size_t const> first_copies; // index of the first copy for each element of `attributes`

  /// Returns whether each copy has attributes, and all attributes are valid.
  [[nodiscard]] bool attributes_are_good() const {
    if (first_copies.front() != 0 || first_copies.back() >= targets.size()) return false;
    for (std::size_t i = 1; i < first_copies.size(); ++i)
      if (first_copies[i] <= first_copies[i - 1]) return false;
    return std::all_of(attributes.begin(), attributes.end(), [](CUmemcpyAttributes const& each) {
      constexpr unsigned known = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
      return each.srcAccessOrder >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM &&
             each.srcAccessOrder <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY && (each.flags & ~known) == 0;
    });
  }
};

source_access access_of(CUmemcpySrcAccessOrder order) {
  if (order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL) return source_access::during_call;
  return order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY ? source_access::at_any_time : source_access::in_stream_order;
}

CUresult copy_all(simulation& device, stream_ptr const& stream, copy_batch_view const& copies, std::size_t& failed)
    GPUMEM_REQUIRES(simulation_mutex) {
  if (stream->kind == stream_kind::legacy || !copies.attributes_are_good()) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < copies.targets.size(); ++i)
    if (copies.bytes[i] != 0 && (copies.targets[i] == 0 || copies.sources[i] == 0)) {
      failed = i;
      return CUDA_ERROR_INVALID_VALUE;
    }
  report_overlaps(device, stream, copies.targets, copies.sources, copies.bytes);
  std::size_t attribute = 0;
  for (std::size_t i = 0; i < copies.targets.size(); ++i) {
    while (attribute + 1 < copies.first_copies.size() && copies.first_copies[attribute + 1] <= i) ++attribute;
    source_access const access = access_of(copies.attributes[attribute].srcAccessOrder);
    CUresult const result = transfer(device, stream, copies.targets[i], copies.sources[i], copies.bytes[i], false,
                                     "cuMemcpyBatchAsync", access);
    if (result == CUDA_SUCCESS) continue;
    failed = i;
    return result;
  }
  return CUDA_SUCCESS;
}

} // namespace

namespace simulated {

CUresult copy_batch(CUdeviceptr* targets, CUdeviceptr* sources, size_t* bytes, size_t count,
                    CUmemcpyAttributes* attributes, size_t* first_copies, size_t attribute_count, size_t* failed,
                    CUstream stream) {
  std::size_t index = std::numeric_limits<std::size_t>::max();
  CUresult const result = enter_on<"cuMemcpyBatchAsync">(
      stream, [&](simulation& device, stream_ptr const& stream) GPUMEM_REQUIRES(simulation_mutex) {
        if (targets == nullptr || sources == nullptr || bytes == nullptr || attributes == nullptr ||
            first_copies == nullptr || attribute_count == 0 || attribute_count > count)
          return CUDA_ERROR_INVALID_VALUE;
        copy_batch_view const all{{targets, count},
                                  {sources, count},
                                  {bytes, count},
                                  {attributes, attribute_count},
                                  {first_copies, attribute_count}};
        return copy_all(device, stream, all, index);
      });
  if (failed != nullptr) *failed = index;
  return result;
}

} // namespace simulated

extern "C" {

CUresult cuMemcpy(CUdeviceptr target, CUdeviceptr source, size_t bytes) {
  return copy_now<"cuMemcpy">(target, source, bytes);
}
CUresult cuMemcpyHtoD(CUdeviceptr target, void const* source, size_t bytes) {
  return copy_now<"cuMemcpyHtoD">(target, address(source), bytes);
}
CUresult cuMemcpyDtoH(void* target, CUdeviceptr source, size_t bytes) {
  return copy_now<"cuMemcpyDtoH">(address(target), source, bytes);
}
CUresult cuMemcpyDtoD(CUdeviceptr target, CUdeviceptr source, size_t bytes) {
  return copy_now<"cuMemcpyDtoD">(target, source, bytes);
}
CUresult cuMemcpyPeer(CUdeviceptr destination, CUcontext target, CUdeviceptr source_pointer, CUcontext source,
                      size_t bytes) {
  return enter_on<"cuMemcpyPeer", (needs_context | unsafe_in_capture)>(
      CU_STREAM_LEGACY, [&](simulation& device, stream_ptr const& stream) GPUMEM_REQUIRES(simulation_mutex) {
        return copy_between(device, stream, destination, target, source_pointer, source, bytes, true, "cuMemcpyPeer");
      });
}

CUresult cuMemcpyAsync(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
  return copy_later<"cuMemcpyAsync">(stream, target, source, bytes);
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr target, void const* source, size_t bytes, CUstream stream) {
  return copy_later<"cuMemcpyHtoDAsync">(stream, target, address(source), bytes);
}
CUresult cuMemcpyDtoHAsync(void* target, CUdeviceptr source, size_t bytes, CUstream stream) {
  return copy_later<"cuMemcpyDtoHAsync">(stream, address(target), source, bytes);
}
CUresult cuMemcpyDtoDAsync(CUdeviceptr target, CUdeviceptr source, size_t bytes, CUstream stream) {
  return copy_later<"cuMemcpyDtoDAsync">(stream, target, source, bytes);
}
CUresult cuMemcpyPeerAsync(CUdeviceptr destination, CUcontext target, CUdeviceptr source_pointer, CUcontext source,
                           size_t bytes, CUstream stream) {
  return enter_on<"cuMemcpyPeerAsync">(stream, [&](simulation& device,
                                                   stream_ptr const& stream) GPUMEM_REQUIRES(simulation_mutex) {
    return copy_between(device, stream, destination, target, source_pointer, source, bytes, false, "cuMemcpyPeerAsync");
  });
}

CUresult cuMemsetD8(CUdeviceptr target, unsigned char value, size_t count) {
  return fill_on < "cuMemsetD8", needs_context | unsafe_in_capture > (CU_STREAM_LEGACY, target, value, 1, count);
}
CUresult cuMemsetD16(CUdeviceptr target, unsigned short value, size_t count) {
  return fill_on < "cuMemsetD16", needs_context | unsafe_in_capture > (CU_STREAM_LEGACY, target, value, 2, count);
}
CUresult cuMemsetD32(CUdeviceptr target, unsigned value, size_t count) {
  return fill_on < "cuMemsetD32", needs_context | unsafe_in_capture > (CU_STREAM_LEGACY, target, value, 4, count);
}
CUresult cuMemsetD8Async(CUdeviceptr target, unsigned char value, size_t count, CUstream stream) {
  return fill_on<"cuMemsetD8Async">(stream, target, value, 1, count);
}
CUresult cuMemsetD16Async(CUdeviceptr target, unsigned short value, size_t count, CUstream stream) {
  return fill_on<"cuMemsetD16Async">(stream, target, value, 2, count);
}
CUresult cuMemsetD32Async(CUdeviceptr target, unsigned value, size_t count, CUstream stream) {
  return fill_on<"cuMemsetD32Async">(stream, target, value, 4, count);
}

CUresult cuMemcpyBatchAsync(CUdeviceptr* targets, CUdeviceptr* sources, size_t* bytes, size_t count,
                            CUmemcpyAttributes* attributes, size_t* first_copies, size_t attribute_count,
                            CUstream stream) {
  return copy_batch(targets, sources, bytes, count, attributes, first_copies, attribute_count, nullptr, stream);
}

} // extern "C"
