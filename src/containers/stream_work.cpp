// stream_work: copies and fills by driver calls or host functions.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
module gpumem:stream_work.impl;
import :stream_work;
import :cuda;
import :device;
import :driver;
import :error;
import :event;
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

// Returns the device that has the memory at the address. Returns nothing for managed and host memory, which work of
// each device can copy, and if there is only one device.
std::optional<device> owner_of(void const* pointer) {
  if (device::count() == 1) return std::nullopt;
  unsigned kind = 0;
  bool managed = false;
  int ordinal = -1;
  std::array asked{CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
  std::array<void*, 3> told{&kind, &managed, &ordinal};
  check(driver().pointer_get_attributes(asked.size(), asked.data(), told.data(), address(pointer)),
        "cuPointerGetAttributes");
  if (kind != CU_MEMORYTYPE_DEVICE || managed || ordinal < 0) return std::nullopt;
  return device{ordinal};
}

} // namespace

stream_work::stream_work(stream_ref on, device home) : home_{home}, scope_{home}, on_{on} { home_.throw_if_lost(); }

void stream_work::require(CUresult result, char const* what) const { check(home_.interpret(result), what); }

// Enqueues a driver call on a stream of the device, in the order of the stream of this object.
template <class Call> void stream_work::run_at(device where, Call call, char const* what) const {
  if (where == home_) return require(call(on_.get()), what);
  stream const there{where};
  event before{home_}, after{where};
  before.record(on_);
  before.make_wait(there);
  {
    device_guard const scope{where};
    check(where.interpret(call(there.get())), what);
  }
  after.record(there);
  after.make_wait(on_);
}

void stream_work::copy(void* to, void const* from, std::size_t bytes) const {
  if (bytes == 0) return;
  auto const target = owner_of(to), source = owner_of(from);
  if (target && source && *target != *source) {
    auto const copies = [&](CUstream on) {
      return driver().memcpy_peer_async(address(to), target->context(), address(from), source->context(), bytes, on);
    };
    return run_at(home_ == *source ? *source : *target, copies, "cuMemcpyPeerAsync");
  }
  auto const copies = [&](CUstream on) { return driver().memcpy_async(address(to), address(from), bytes, on); };
  run_at(target.value_or(source.value_or(home_)), copies, "cuMemcpyAsync");
}

void stream_work::fill(void* to, std::byte value, std::size_t bytes) const {
  if (bytes == 0) return;
  auto const byte = std::to_integer<unsigned char>(value);
  auto const fills = [&](CUstream on) { return driver().memset_d8_async(address(to), byte, bytes, on); };
  run_at(owner_of(to).value_or(home_), fills, "cuMemsetD8Async");
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
