// Copies and fills: makes the operation, enqueues it, and waits for it if the driver does.
// SPDX-License-Identifier: Apache-2.0
#include "transfers.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace simulated {

namespace {

enum class place { device, reachable_host, pageable };

place place_of(simulation const& device, std::uint64_t address) {
  if (device.mappings.owns(address)) return place::device;
  allocation const* held = device.allocations.find(address);
  if (held != nullptr) return held->kind == memory_kind::device ? place::device : place::reachable_host;
  if (device.allocations.owns(address)) return place::device;
  return device.options().pageable_memory != 0 ? place::reachable_host : place::pageable;
}

/// Returns whether the memory was allocated outside CUDA.
bool is_foreign(simulation const& device, std::uint64_t address, place where) {
  allocation const* held = device.allocations.find(address);
  return where != place::device && (held == nullptr || held->kind == memory_kind::registered);
}

char* bytes_at(std::uint64_t address) { return reinterpret_cast<char*>(address); }

std::uint64_t transfer_time(std::size_t bytes) { return 2000 + bytes / 50; }

} // namespace

CUresult transfer(simulation& device, stream_ptr const& on, std::uint64_t to, std::uint64_t from, std::size_t bytes,
                  bool wait, char const* call, source_access how, copying_devices by) {
  if (bytes == 0) return CUDA_SUCCESS;
  if (to == 0 || from == 0) return CUDA_ERROR_INVALID_VALUE;
  place const target = place_of(device, to);
  place const source = place_of(device, from);
  operation work;
  work.action = "copy";
  work.duration = transfer_time(bytes);
  bool const reads_now =
      how == source_access::during_call ||
      (how == source_access::usual && source == place::pageable && target == place::device && !on->capturing);
  if (source != place::pageable && how == source_access::during_call)
    device.order.touch(device.host_point("read during a call"), from, bytes, false, this_host_thread().own_work);
  else if (source != place::pageable)
    work.touches.push_back(
        {from, bytes, false, how == source_access::at_any_time && is_foreign(device, from, source), by.source});
  if (target != place::pageable) work.touches.push_back({to, bytes, true, false, by.target});
  if (reads_now) {
    auto staged = std::make_shared<std::vector<char>>(bytes_at(from), bytes_at(from) + bytes);
    work.run = [staged, to] { std::memcpy(bytes_at(to), staged->data(), staged->size()); };
  } else {
    work.run = [to, from, bytes] { std::memmove(bytes_at(to), bytes_at(from), bytes); };
  }
  if (wait && on->capturing) {
    device.invalidate(*on->capturing);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  bool const captured = on->capturing != nullptr;
  if (CUresult const result = device.enqueue(on, std::move(work)); result != CUDA_SUCCESS) return result;
  bool const to_pageable = target == place::pageable && !captured;
  bool const device_only = target == place::device && source == place::device;
  return to_pageable || (wait && !device_only) ? device.wait_for(on, call) : CUDA_SUCCESS;
}

void report_overlaps(simulation& device, stream_ptr const& on, std::span<CUdeviceptr const> to,
                     std::span<CUdeviceptr const> from, std::span<std::size_t const> bytes) {
  struct part {
    std::uint64_t begin;
    std::uint64_t end;
    std::size_t copy;
    bool write;
  };
  std::vector<part> parts;
  for (std::size_t i = 0; i < to.size(); ++i)
    for (bool const write : {false, true}) {
      std::uint64_t const begin = write ? to[i] : from[i];
      if (bytes[i] != 0) parts.push_back({begin, begin + bytes[i], i, write});
    }
  std::sort(parts.begin(), parts.end(), [](part const& a, part const& b) { return a.begin < b.begin; });
  part const* last_read = nullptr; // the read that ends at the highest address so far
  part const* last_write = nullptr;
  for (part const& each : parts) {
    part const* other = last_write;
    if (each.write && last_read != nullptr && last_read->end > each.begin) other = last_read;
    if (other != nullptr && other->end > each.begin) {
      auto const [first, second] = std::minmax(other->copy, each.copy);
      device.find(finding_kind::unordered_access, "copies " + std::to_string(first) + " and " + std::to_string(second) +
                                                      " of a batch on stream " + std::to_string(on->id) +
                                                      " touch the same bytes, and a batch has no order");
    }
    part const*& last = each.write ? last_write : last_read;
    if (last == nullptr || each.end > last->end) last = &each;
  }
}

CUresult fill(simulation& device, stream_ptr const& on, std::uint64_t to, std::uint32_t value, unsigned width,
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
