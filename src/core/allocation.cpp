// Frees a block, and orders the uses of a block on several streams.
// SPDX-License-Identifier: Apache-2.0
module;
#include <cstddef>
#include <optional>
#include <utility>
module gpumem:allocation.impl;
import :allocation;
import :cuda;
import :device;
import :driver;
import :error;
import :event;
import :process;
import :services;
import :stream;
import :stream_timeline;

namespace gpumem {

namespace {

// Waits on the host for the stream's work. Throws nothing: if the driver cannot wait for the stream, the stream runs no
// work any more.
void wait_for(stream_ref used_stream, device device) noexcept {
  if (device.lost()) return;
  try {
    device_guard const scope{device};
    identify(used_stream, device).identity().wait_on_host();
  } catch (...) {
    // The handle is dead, or the device is lost.
  }
}

} // namespace

// Each stream's device is made current. Otherwise the handle of a default stream would mean the default stream of
// another device.
scoped_use::~scoped_use() {
  if (!use_event_.valid() || !driver_alive()) return;
  try {
    {
      device_guard const scope{used_device_};
      use_event_.record(used_stream_);
    }
    device_guard const scope{home_device_};
    use_event_.make_wait(home_);
  } catch (...) {
    // No event could order the streams: the device is lost, a handle is dead, or both are default streams of different
    // devices. The only order left is to wait for the used stream on the host.
    wait_for(used_stream_, used_device_);
  }
}

void allocation::swap(allocation& other) noexcept {
  std::swap(data_, other.data_);
  auto const bytes = bytes_, log2 = alignment_log2_;
  bytes_ = other.bytes_;
  alignment_log2_ = other.alignment_log2_;
  other.bytes_ = bytes;
  other.alignment_log2_ = log2;
  std::swap(services_, other.services_);
  std::swap(timeline_, other.timeline_);
  std::swap(stream_, other.stream_);
}

void* allocation::release() noexcept {
  auto* const data = std::exchange(data_, nullptr);
  if (data) drop();
  allocation{}.swap(*this);
  return data;
}

void allocation::free(stream_key const& key) noexcept {
  if (!data_) return;
  auto* const data = std::exchange(data_, nullptr);
  if (driver_alive()) services_.table->deallocate_keyed(services_.state, &key, data, bytes_, alignment());
  bytes_ = 0;
  drop();
}

void allocation::reset() noexcept {
  if (data_ && driver_alive()) free(stream_key::at_end_of(*timeline_, stream_));
  data_ = nullptr;
}

void allocation::reset(stream_ref stream) {
  if (detail::forked()) return reset();
  if (data_) free(user(stream));
}

device allocation::where() const {
  if (!services_.table) detail::throw_moved_from("allocation");
  auto const home = detail::device_of(services_);
  return home ? *home : device::current();
}

// Identifies a stream whose work is to use the block. Throws if the stream's device may not.
stream_key allocation::user(stream_ref stream) const {
  auto const key = identify(stream, where());
  if (!detail::serves_stream(services_, key))
    throw detail::rule_error{broken_rule::unopened_device, detail::name_of(services_)};
  return key;
}

// An event can be recorded only on streams of its own device, so order_on() may need two events. The first one belongs
// to the block's device and is recorded here. The second one belongs to the using stream's device; the destructor of
// the returned scoped_use records it.
scoped_use allocation::use_on(stream_ref stream) const { return order_on(user(stream), stream); }

scoped_use allocation::order_on(stream_key const& user, stream_ref stream) const {
  device const used{user.identity().timeline().device()}, home{timeline_->device()};
  event last_use{home};
  last_use.record(this->stream());
  last_use.make_wait(stream);
  if (used != home) last_use = event{used};
  return {this->stream(), home, stream, used, std::move(last_use)};
}

void allocation::set_stream(stream_ref stream) {
  auto const key = user(stream);
  event last_use{device{timeline_->device()}};
  last_use.record(this->stream());
  last_use.make_wait(stream);
  drop();
  timeline_ = &key.identity().timeline();
  stream_ = key.identity().handle();
  hold();
}

} // namespace gpumem
