// stream_pool: creates its streams and hands them out in turn.
// SPDX-License-Identifier: Apache-2.0
module;
#include <atomic>
#include <cstddef>
#include <stdexcept>
#include <vector>
module gpumem:stream_pool.impl;
import :stream_pool;
import :cuda;
import :device;
import :stream;

namespace gpumem {
namespace {

// Returns true on an error too.
bool may_capture(stream_ref stream) noexcept try { return detail::is_capturing(stream.get()); } catch (...) {
  return true;
}

} // namespace

stream_pool::stream_pool(gpumem::device device, std::size_t size, int priority) {
  if (size == 0) throw std::invalid_argument{"gpumem: a stream_pool needs at least one stream"};
  streams_.reserve(size);
  while (streams_.size() < size) streams_.emplace_back(device, priority);
}

stream_ref stream_pool::next() noexcept {
  auto const step = [this] { return (*this)[next_.fetch_add(1, std::memory_order_relaxed)]; };
  auto found = step();
  for (auto tries = size(); tries > 1 && may_capture(found); --tries) found = step();
  return found;
}

void stream_pool::synchronize() {
  for (auto& each : streams_) each.synchronize();
}

} // namespace gpumem
