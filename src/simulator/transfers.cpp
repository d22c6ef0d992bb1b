// Copies and fills: the operation, and whether the call waits for it.
// SPDX-License-Identifier: Apache-2.0
#include "transfers.hpp"

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace simulated {

namespace {

enum class place { device, reachable_host, pageable };

place place_of(const simulation& device, std::uint64_t address) {
  if (device.mappings.owns(address)) return place::device;
  const allocation* held = device.allocations.find(address);
  if (held != nullptr) return held->kind == memory_kind::device ? place::device : place::reachable_host;
  if (device.allocations.owns(address)) return place::device;
  return device.options().pageable_memory != 0 ? place::reachable_host : place::pageable;
}

char* bytes_at(std::uint64_t address) { return reinterpret_cast<char*>(address); }

std::uint64_t transfer_time(std::size_t bytes) { return 2000 + bytes / 50; }

} // namespace

CUresult transfer(simulation& device, const stream_ptr& on, std::uint64_t to, std::uint64_t from, std::size_t bytes,
                  bool wait, const char* call) {
  if (bytes == 0) return CUDA_SUCCESS;
  if (to == 0 || from == 0) return CUDA_ERROR_INVALID_VALUE;
  const place target = place_of(device, to);
  const place source = place_of(device, from);
  operation work;
  work.action = "copy";
  work.duration = transfer_time(bytes);
  if (source != place::pageable) work.touches.push_back({from, bytes, false});
  if (target != place::pageable) work.touches.push_back({to, bytes, true});
  if (source == place::pageable && target == place::device && !on->capturing) {
    auto staged = std::make_shared<std::vector<char>>(bytes_at(from), bytes_at(from) + bytes);
    work.run = [staged, to] { std::memcpy(bytes_at(to), staged->data(), staged->size()); };
  } else {
    work.run = [to, from, bytes] { std::memmove(bytes_at(to), bytes_at(from), bytes); };
  }
  if (wait && on->capturing) {
    device.invalidate(*on->capturing);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  const bool captured = on->capturing != nullptr;
  if (const CUresult result = device.enqueue(on, std::move(work)); result != CUDA_SUCCESS) return result;
  const bool to_pageable = target == place::pageable && !captured;
  const bool device_only = target == place::device && source == place::device;
  return to_pageable || (wait && !device_only) ? device.wait_for(on, call) : CUDA_SUCCESS;
}

CUresult fill(simulation& device, const stream_ptr& on, std::uint64_t to, std::uint32_t value, unsigned width,
              std::size_t count) {
  if (count == 0) return CUDA_SUCCESS;
  if (to == 0 || to % width != 0 || place_of(device, to) == place::pageable) return CUDA_ERROR_INVALID_VALUE;
  operation work;
  work.action = "fill";
  work.duration = transfer_time(count * width);
  work.touches.push_back({to, count * width, true});
  work.run = [=] {
    if (width == 1) {
      std::memset(bytes_at(to), static_cast<int>(value), count);
      return;
    }
    for (std::size_t i = 0; i < count; ++i) std::memcpy(bytes_at(to) + i * width, &value, width);
  };
  return device.enqueue(on, std::move(work));
}

} // namespace simulated
