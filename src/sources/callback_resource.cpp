// callback_resource: calls the user's functions, and converts their exceptions into failures.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cuda.h>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
module gpumem:callback_resource.impl;
import :callback_resource;
import :cuda;
import :cuda_resource;
import :device;
import :driver;
import :error;
import :misuse;
import :services;
import :shared_state;
import :source_state;
import :stream;

namespace gpumem::detail {
namespace {

inline constexpr std::size_t largest_alignment = std::size_t{1} << 63; // the functions align, so no padding is added

template <class Function> Function required(Function function, char const* name) {
  if (function) return function;
  throw std::invalid_argument{std::string{"gpumem: callback_resource: the function `"} + name + "` is empty"};
}

class device where_checked(class device device) {
  device.require();
  return device;
}

} // namespace

callback_state::callback_state(class device device, callback_allocate allocate, callback_deallocate deallocate)
    : source_state{"callback_resource", largest_alignment}, device_{where_checked(device)}, stream_{device},
      allocate_{required(std::move(allocate), "allocate")}, deallocate_{required(std::move(deallocate), "deallocate")} {
}

callback_state::~callback_state() {
  if (driver_alive()) run_deferred_frees(stream_key::host());
}

expected<void*, failure> callback_state::try_allocate(stream_key const& key, std::size_t bytes,
                                                      std::size_t alignment) noexcept {
  if (closed()) {
    report_misuse({misuse::kind::use_after_close, nullptr, bytes, 0, key.identity().id(), "callback_resource"});
    return unexpected<failure>{failure{outcome::closed, 0, bytes}};
  }
  auto result = source_state::try_allocate(key, bytes, alignment);
  if (result) add_live();
  return result;
}

void callback_state::deallocate(stream_key const& key, void* pointer, std::size_t bytes,
                                std::size_t alignment) noexcept {
  if (source_state::deallocate(key, pointer, bytes, alignment)) drop_live();
}

expected<void*, failure> callback_state::allocate_memory(stream_key const& key, std::size_t bytes,
                                                         std::size_t alignment) noexcept {
  auto const on = usable_handle(key);
  if (!on || !key.identity().has_handle()) return allocate_ready(bytes, alignment);
  expected<void*, failure> given = nullptr;
  auto const result = call_on_stream(key, *on, [&] {
    given = call_allocate(stream_ref{key.identity().handle()}, bytes, alignment);
    return CUDA_SUCCESS;
  });
  if (result != CUDA_SUCCESS) return unexpected<failure>{refusal_of(device_.interpret(result), bytes)};
  return given;
}

expected<void*, failure> callback_state::allocate_ready(std::size_t bytes, std::size_t alignment) noexcept {
  auto const given = call_allocate(stream_, bytes, alignment);
  if (!given) return given;
  auto const waited = call_on(device_, [&] { return driver().stream_synchronize(stream_.get()); });
  if (waited == CUDA_SUCCESS) return given;
  call_deallocate(stream_, {*given, bytes, bytes, alignment, stream_key::host()});
  return unexpected<failure>{refusal_of(device_.interpret(waited), bytes)};
}

// The user's functions may make driver calls, which belong to no graph. Without relaxed_capture, such a call would
// invalidate a global-mode capture of another thread.
expected<void*, failure> callback_state::call_allocate(stream_ref stream, std::size_t bytes,
                                                       std::size_t alignment) noexcept {
  void* result = nullptr;
  try {
    device_.require();
    device_guard const scope{device_};
    relaxed_capture const mode;
    result = allocate_(stream, bytes, alignment);
  } catch (...) {
    auto const why = current_failure(bytes);
    if (why.code != 0) device_.interpret(static_cast<CUresult>(why.code)); // marks the device as lost, if it is
    return unexpected<failure>{why};
  }
  if (!result) return unexpected<failure>{failure{outcome::exhausted, 0, bytes}};
  if (reinterpret_cast<std::uintptr_t>(result) % alignment == 0) return result;
  call_deallocate(stream, {result, bytes, bytes, alignment, stream_key::host()});
  return unexpected<failure>{failure{outcome::invalid_argument, 0, bytes}};
}

void callback_state::call_deallocate(stream_ref stream, block const& returned) noexcept {
  if (device_.lost()) return;
  try {
    device_guard const scope{device_};
    relaxed_capture const mode;
    deallocate_(stream, returned.base, returned.bytes, returned.alignment);
  } catch (...) { dropped_.fetch_add(1, std::memory_order_relaxed); }
}

bool callback_state::free_in_order(stream_key const& key, block const& returned) noexcept {
  if (device_.lost()) return true;
  auto const on = usable_handle(key);
  if (!on || !key.identity().has_handle()) return free_after_wait(key, returned);
  auto const result = call_on_stream(key, *on, [&] {
    call_deallocate(stream_ref{key.identity().handle()}, returned);
    return CUDA_SUCCESS;
  });
  return !capture_forbids(device_.interpret(result));
}

bool callback_state::free_memory(block const& returned) noexcept {
  call_deallocate(stream_, returned);
  return true;
}

void callback_state::mark_lost(stream_key const&, CUresult error) noexcept { device_.mark_lost(error); }

} // namespace gpumem::detail
