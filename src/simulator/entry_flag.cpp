// Entry points that wait for a value in memory or write one; tests model persistent kernels with them.
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>

#include "entry.hpp"

using namespace simulated;

namespace {

bool reachable(simulation const& device, CUdeviceptr address, unsigned width) {
  if (address == 0 || address % width != 0) return false;
  return device.allocations.find(address) != nullptr || device.mappings.find(address) != nullptr;
}

template <entry_name Name>
CUresult wait_value(CUstream handle, CUdeviceptr address, std::uint64_t value, unsigned flags, bool wide) {
  return enter_on<Name>(handle, [&](simulation& device, stream_ptr const& stream) {
    if (!reachable(device, address, wide ? 8 : 4)) return CUDA_ERROR_INVALID_VALUE;
    operation work;
    work.action = "wait for a value";
    work.flag = std::make_shared<flag_wait>(flag_wait{reinterpret_cast<void const*>(address), value, flags, wide});
    return device.enqueue(stream, std::move(work));
  });
}

template <entry_name Name> CUresult write_value(CUstream handle, CUdeviceptr address, std::uint64_t value, bool wide) {
  return enter_on<Name>(handle, [&](simulation& device, stream_ptr const& stream) {
    if (!reachable(device, address, wide ? 8 : 4)) return CUDA_ERROR_INVALID_VALUE;
    operation work;
    work.action = "write of a value";
    work.run = [=] {
      if (wide)
        __atomic_store_n(reinterpret_cast<std::uint64_t*>(address), value, __ATOMIC_RELEASE);
      else
        __atomic_store_n(reinterpret_cast<std::uint32_t*>(address), static_cast<std::uint32_t>(value),
                         __ATOMIC_RELEASE);
    };
    return device.enqueue(stream, std::move(work));
  });
}

} // namespace

extern "C" {

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  return wait_value<"cuStreamWaitValue32">(stream, address, value, flags, false);
}
CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags) {
  return wait_value<"cuStreamWaitValue64">(stream, address, value, flags, true);
}
CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned) {
  return write_value<"cuStreamWriteValue32">(stream, address, value, false);
}
CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned) {
  return write_value<"cuStreamWriteValue64">(stream, address, value, true);
}

} // extern "C"
