// stream_work: copies and fills by driver calls or host functions.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <cstddef>
#include <cstring>
#include <memory>
module gpumem:stream_work.impl;
import :stream_work;
import :cuda;
import :device;
import :driver;
import :error;
import :stream;

namespace gpumem::detail {
namespace {

struct host_work {
  void* to;
  void const* from; // null if this is a fill
  std::byte value;
  std::size_t bytes;
};

void work_now(void* data) {
  std::unique_ptr<host_work> const what{static_cast<host_work*>(data)};
  if (what->from) {
    std::memcpy(what->to, what->from, what->bytes);
  } else {
    std::memset(what->to, std::to_integer<int>(what->value), what->bytes);
  }
}

CUresult launch(CUstream on, host_work const& what) {
  auto owned = std::make_unique<host_work>(what);
  auto const result = driver().launch_host_func(on, work_now, owned.get());
  if (result == CUDA_SUCCESS) owned.release(); // NOLINT(bugprone-unused-return-value): work_now() frees it
  return result;
}

CUdeviceptr address(void const* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

} // namespace

stream_work::stream_work(stream_ref on, device home) : home_{home}, scope_{home}, on_{on} { home_.throw_if_lost(); }

void stream_work::require(CUresult result, char const* what) const { check(home_.interpret(result), what); }

void stream_work::copy(void* to, void const* from, std::size_t bytes) const {
  if (bytes) require(driver().memcpy_async(address(to), address(from), bytes, on_.get()), "cuMemcpyAsync");
}

void stream_work::fill(void* to, std::byte value, std::size_t bytes) const {
  auto const byte = std::to_integer<unsigned char>(value);
  if (bytes) require(driver().memset_d8_async(address(to), byte, bytes, on_.get()), "cuMemsetD8Async");
}

void stream_work::copy_by_host(void* to, void const* from, std::size_t bytes) const {
  if (bytes) require(launch(on_.get(), {to, from, {}, bytes}), "cuLaunchHostFunc");
}

void stream_work::fill_by_host(void* to, std::byte value, std::size_t bytes) const {
  if (bytes) require(launch(on_.get(), {to, nullptr, value, bytes}), "cuLaunchHostFunc");
}

void stream_work::wait() const {
  refuse_capture();
  require(identify(on_, home_).wait_on_host(), "cuStreamSynchronize");
}

void stream_work::refuse_capture() const {
  if (identify(on_, home_).capturing()) throw acquire_error{failure{outcome::capture_unsupported}};
}

} // namespace gpumem::detail
