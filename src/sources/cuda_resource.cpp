// Device memory by cuMemAlloc.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <cstddef>
#include <map>
#include <mutex>
module gpumem:cuda_resource.impl;
import :cuda_resource;
import :cuda;
import :device;
import :driver;
import :error;
import :services;
import :source_state;
import :stream;
import :sync;

namespace gpumem::detail {
namespace {

inline constexpr std::size_t driver_alignment = 256;

// cuMemAlloc and cuMemFree are no part of any graph: without leave they would break a capture of another thread.
class relaxed_capture {
public:
  relaxed_capture() noexcept { driver().thread_exchange_stream_capture_mode(&mode_); }
  ~relaxed_capture() { driver().thread_exchange_stream_capture_mode(&mode_); }
  relaxed_capture(relaxed_capture const&) = delete;
  relaxed_capture& operator=(relaxed_capture const&) = delete;

private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

// Runs a driver call with the device current; the error of either.
template <class Call> CUresult call_on(device where, Call call) noexcept {
  try {
    current_device const scope{where};
    relaxed_capture const mode;
    return call();
  } catch (cuda_error const& e) { return static_cast<CUresult>(e.status()); }
}

} // namespace

cuda_state::cuda_state(class device where) noexcept : source_state{"cuda_resource", driver_alignment}, device_{where} {}

cuda_state& cuda_state::of(class device where) {
  static auto* const guard = new sync::mutex;
  static auto* const states = new std::map<int, cuda_state>;
  sync::lock const held{*guard};
  return states->try_emplace(where.ordinal(), where).first->second;
}

expected<void*, failure> cuda_state::draw(std::size_t bytes, std::size_t) noexcept {
  CUdeviceptr address{};
  auto const result = call_on(device_, [&] { return driver().mem_alloc(&address, bytes); });
  if (result == CUDA_SUCCESS) return reinterpret_cast<void*>(address);
  if (sticky(result)) device_.lose(result);
  return unexpected<failure>{refusal_of(result, bytes)};
}

bool cuda_state::give(void* base, std::size_t) noexcept {
  if (device_.lost()) return true;
  auto const result = call_on(device_, [&] { return driver().mem_free(reinterpret_cast<CUdeviceptr>(base)); });
  if (sticky(result)) device_.lose(result);
  return !capture_forbids(result);
}

void cuda_state::lose(stream_key const&, CUresult error) noexcept { device_.lose(error); }

} // namespace gpumem::detail
