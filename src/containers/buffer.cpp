// Copies, fills and waits that containers enqueue, and the memory of buffers.
// SPDX-License-Identifier: Apache-2.0
module;
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cuda.h>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
module gpumem:buffer.impl;
import :buffer;
import :acquire;
import :allocation;
import :any_memory;
import :cuda;
import :current_resource;
import :device;
import :driver;
import :error;
import :event;
import :services;
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

CUresult launch(CUstream handle, host_work const& work) {
  auto owned = std::make_unique<host_work>(work);
  auto const result = driver().launch_host_func(handle, work_now, owned.get());
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

stream_work::stream_work(stream_ref stream, device home) : home_{home}, scope_{home}, stream_{stream} {
  home_.throw_if_lost();
}

void stream_work::require(CUresult result, char const* call) const { check(home_.interpret(result), call); }

// Enqueues a driver call on a stream of the device, in the order of the stream of this object.
template <class Call> void stream_work::run_at(device device, Call call, char const* text) const {
  if (device == home_) return require(call(stream_.get()), text);
  stream const there{device};
  event before{home_}, after{device};
  before.record(stream_);
  before.make_wait(there);
  {
    device_guard const scope{device};
    check(device.interpret(call(there.get())), text);
  }
  after.record(there);
  after.make_wait(stream_);
}

void stream_work::copy(void* destination, void const* origin, std::size_t bytes) const {
  if (bytes == 0) return;
  auto const target = owner_of(destination), source = owner_of(origin);
  if (target && source && *target != *source) {
    auto const copies = [&](CUstream handle) {
      return driver().memcpy_peer_async(address(destination), target->context(), address(origin), source->context(),
                                        bytes, handle);
    };
    return run_at(home_ == *source ? *source : *target, copies, "cuMemcpyPeerAsync");
  }
  auto const copies = [&](CUstream handle) {
    return driver().memcpy_async(address(destination), address(origin), bytes, handle);
  };
  run_at(target.value_or(source.value_or(home_)), copies, "cuMemcpyAsync");
}

void stream_work::fill(void* target, std::byte value, std::size_t bytes) const {
  if (bytes == 0) return;
  auto const byte = std::to_integer<unsigned char>(value);
  auto const fills = [&](CUstream handle) { return driver().memset_d8_async(address(target), byte, bytes, handle); };
  run_at(owner_of(target).value_or(home_), fills, "cuMemsetD8Async");
}

void stream_work::copy_by_host(void* target, void const* source, std::size_t bytes) const {
  if (bytes) require(launch(stream_.get(), {target, source, {}, bytes}), "cuLaunchHostFunc");
}

void stream_work::fill_by_host(void* target, std::byte value, std::size_t bytes) const {
  if (bytes) require(launch(stream_.get(), {target, nullptr, value, bytes}), "cuLaunchHostFunc");
}

void stream_work::wait() const {
  refuse_capture();
  require(identify(stream_, home_).identity().wait_on_host(), "cuStreamSynchronize");
}

void stream_work::refuse_capture() const {
  if (identify(stream_, home_).identity().capturing()) throw acquire_error{failure{outcome::capture_unsupported}};
}

} // namespace gpumem::detail

namespace gpumem {
namespace {

int home_of(any_memory& resource, stream_ref stream) {
  auto const where = detail::device_of(services_of(resource));
  return (where ? identify(stream, *where) : identify(stream)).identity().timeline().device();
}

bool overlap(void const* a, void const* b, std::size_t bytes) {
  auto const x = reinterpret_cast<std::uintptr_t>(a), y = reinterpret_cast<std::uintptr_t>(b);
  return x < y ? y - x < bytes : x - y < bytes;
}

} // namespace

buffer::buffer(stream_ref stream, any_memory resource, std::size_t bytes, std::size_t alignment)
    : resource_{make_any_memory(std::move(resource))} {
  if (!std::has_single_bit(alignment)) throw detail::rule_error{broken_rule::alignment};
  auto const home = home_of(resource_, stream);
  block_ = obtain(stream, bytes, alignment);
  size_ = bytes;
  home_ = home;
}

buffer::buffer(stream_ref stream, std::size_t bytes, std::size_t alignment)
    : buffer{stream, any_memory{current_resource(device{identify(stream).identity().timeline().device()})}, bytes,
             alignment} {}

buffer::buffer(allocation block, any_memory resource) : resource_{make_any_memory(std::move(resource))} {
  auto const home = home_of(resource_, block.stream());
  block_ = block ? std::move(block) : obtain(block.stream(), 0, default_alignment);
  size_ = block_.bytes();
  home_ = home;
}

buffer buffer::copy_of(stream_ref stream, buffer const& source) {
  source.home(); // throws if `source` was moved from
  return copy_of(stream, source.resource_, source);
}

buffer::buffer(buffer&& other) noexcept
    : resource_{std::move(other.resource_)}, block_{std::move(other.block_)}, size_{std::exchange(other.size_, 0)},
      home_{std::exchange(other.home_, -1)} {}

buffer& buffer::operator=(buffer&& other) noexcept {
  if (this == &other) return *this;
  block_ = std::move(other.block_);
  resource_ = std::move(other.resource_);
  size_ = std::exchange(other.size_, 0);
  home_ = std::exchange(other.home_, -1);
  return *this;
}

device buffer::home() const {
  if (home_ < 0) throw std::invalid_argument{"gpumem: the buffer was moved from or default-constructed"};
  return device{home_};
}

void buffer::require_range(std::size_t bytes, std::size_t offset) const {
  if (offset > size_ || bytes > size_ - offset) {
    throw std::out_of_range{"gpumem: " + std::to_string(bytes) + " bytes at " + std::to_string(offset) +
                            " of a buffer of " + std::to_string(size_)};
  }
}

allocation buffer::obtain(stream_ref stream, std::size_t bytes, std::size_t alignment) {
  auto const from = services_of(resource_);
  auto result = detail::blocking_operation{{from, stream, bytes, {.alignment = alignment}}}.allocate();
  if (!result) detail::throw_failure_of(from, stream.get(), result.error());
  return std::move(*result);
}

// Frees the old block in the order of the present stream, and puts `fresh` in its place. reset() gets the handle of the
// stream, so that it can record an event there. With the event other streams can reuse the block sooner.
void buffer::replace(allocation fresh) {
  auto old = std::exchange(block_, std::move(fresh));
  old.reset(block_.stream());
}

// Copies from this buffer. For pageable memory the driver copies during the call, not when the stream reaches the copy.
// So if no device can access the buffer's memory, this function first waits for the stream. If no device can access the
// target either, it does not wait, and a host function in the stream copies.
void buffer::copy_on(detail::stream_work const& work, void* target, void const* source, std::size_t bytes,
                     bool target_reached) const {
  if (bytes == 0) return;
  bool const reached = detail::device_reaches(resource_);
  if (!reached && !target_reached) return work.copy_by_host(target, source, bytes);
  if (!reached) work.wait();
  work.copy(target, source, bytes);
}

void buffer::move_to(std::size_t capacity) {
  auto const on = work();
  auto fresh = obtain(stream(), capacity, alignment());
  copy_on(on, fresh.data(), block_.data(), std::min(size_, capacity), detail::device_reaches(resource_));
  replace(std::move(fresh));
}

void buffer::resize(std::size_t bytes) {
  reserve(bytes);
  size_ = bytes;
}

void buffer::reserve(std::size_t bytes) {
  home();
  if (bytes > capacity()) move_to(bytes);
}

void buffer::shrink_to_fit() {
  home();
  if (size_ < capacity()) move_to(size_);
}

void buffer::clear() {
  auto const on = work();
  size_ = 0;
  block_.reset(stream());
}

void buffer::copy_from(void const* source, std::size_t bytes, std::size_t offset) {
  auto const on = work();
  require_range(bytes, offset);
  if (bytes && !detail::device_reaches(resource_)) on.wait(); // the driver could write before earlier work has run
  on.copy(static_cast<std::byte*>(block_.data()) + offset, source, bytes);
}

void buffer::copy_to(void* target, std::size_t bytes, std::size_t offset) const {
  auto const on = work();
  require_range(bytes, offset);
  if (bytes && !detail::device_reaches(resource_)) on.wait(); // the driver could read before earlier work has run
  on.copy(target, static_cast<std::byte const*>(block_.data()) + offset, bytes);
}

void buffer::copy_from(buffer const& source, std::size_t bytes, std::size_t offset, std::size_t source_offset) {
  auto const stream_work = work();
  auto const source_home = source.home();
  require_range(bytes, offset);
  source.require_range(bytes, source_offset);
  if (bytes == 0) return;
  auto* const to = static_cast<std::byte*>(block_.data()) + offset;
  auto const* const from = static_cast<std::byte const*>(source.block_.data()) + source_offset;
  if (overlap(to, from, bytes)) throw std::invalid_argument{"gpumem: source and target of the copy overlap"};
  bool const reached = detail::device_reaches(resource_);
  if (source_home.ordinal() == home_ && source.stream() == stream()) {
    source.copy_on(stream_work, to, from, bytes, reached);
  } else {
    auto const use = source.order_on(stream());
    source.copy_on(stream_work, to, from, bytes, reached);
  }
}

void buffer::assign(buffer const& source) {
  auto const on = work();
  source.home();
  if (this == &source) return;
  if (source.size_ > capacity()) replace(obtain(stream(), source.size_, alignment()));
  size_ = source.size_;
  copy_from(source, size_);
}

void buffer::read(void* target, std::size_t bytes, std::size_t offset) const {
  auto const on = work();
  on.refuse_capture();
  copy_to(target, bytes, offset);
  on.wait();
}

void buffer::read_on(stream_ref stream, void* target, std::size_t bytes, std::size_t offset) const {
  detail::stream_work const on{stream, device{identify(stream, home()).identity().timeline().device()}};
  on.refuse_capture();
  require_range(bytes, offset);
  auto const use = order_on(stream);
  if (!detail::device_reaches(resource_)) on.wait();
  on.copy(target, static_cast<std::byte const*>(block_.data()) + offset, bytes);
  on.wait();
}

// The source is pageable memory, which the caller may destroy once write() returns. The driver's copy call has read it
// when it returns, unless the host can access the target too: that copy may run later, so the host waits for it.
void buffer::write(void const* source, std::size_t bytes, std::size_t offset) {
  auto const on = work();
  on.refuse_capture();
  copy_from(source, bytes, offset);
  if (extend::traits_by_property(resource_).host_accessible) on.wait();
}

void buffer::fill(std::byte value, std::size_t bytes, std::size_t offset) {
  auto const on = work();
  require_range(bytes, offset);
  auto* const to = static_cast<std::byte*>(block_.data()) + offset;
  if (detail::device_reaches(resource_)) {
    on.fill(to, value, bytes);
  } else {
    on.fill_by_host(to, value, bytes);
  }
}

// identify() throws if `stream` is a default stream handle and the current device is not the buffer's. So it is called
// before the guard makes the buffer's device current. The guard is there for the buffer's own stream: a default stream
// handle then means the same stream as when the buffer got it.
scoped_use buffer::use_on(stream_ref stream) const {
  identify(stream, home());
  device_guard const scope{home()};
  return block_.use_on(stream);
}

// The stream's work touches the memory only by copies, which the device that has the memory makes.
scoped_use buffer::order_on(stream_ref stream) const {
  auto const key = identify(stream, home());
  device_guard const scope{home()};
  return block_.order_on(key, stream);
}

void buffer::set_stream(stream_ref stream) {
  auto const key = identify(stream, home());
  device_guard const scope{home()};
  block_.set_stream(stream);
  home_ = key.identity().timeline().device();
}

void buffer::synchronize() const { work().wait(); }

allocation buffer::release() noexcept {
  size_ = 0;
  home_ = -1;
  return std::move(block_);
}

} // namespace gpumem
