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
  allocation const* block_here = device.allocations.find(address);
  if (block_here != nullptr) return block_here->kind == memory_kind::device ? place::device : place::reachable_host;
  if (device.allocations.owns(address)) return place::device;
  return device.options().pageable_memory != 0 ? place::reachable_host : place::pageable;
}

/// Returns whether the memory was allocated outside CUDA.
bool is_foreign(simulation const& device, std::uint64_t address, place location) {
  allocation const* block_here = device.allocations.find(address);
  return location != place::device && (block_here == nullptr || block_here->kind == memory_kind::registered);
}

char* bytes_at(std::uint64_t address) { return reinterpret_cast<char*>(address); }

std::uint64_t transfer_time(std::size_t bytes) { return 2000 + bytes / 50; }

} // namespace

CUresult transfer(simulation& device, stream_ptr const& stream, std::uint64_t destination, std::uint64_t source_address,
                  std::size_t bytes, bool wait, char const* call, source_access access, copying_devices devices) {
  if (bytes == 0) return CUDA_SUCCESS;
  if (destination == 0 || source_address == 0) return CUDA_ERROR_INVALID_VALUE;
  place const target = place_of(device, destination);
  place const source = place_of(device, source_address);
  operation work;
  work.action = "copy";
  work.duration = transfer_time(bytes);
  bool const reads_now =
      access == source_access::during_call ||
      (access == source_access::usual && source == place::pageable && target == place::device && !stream->capturing);
  if (source != place::pageable && access == source_access::during_call)
    device.order.touch(device.host_point("read during a call"), source_address, bytes, false,
                       this_host_thread().own_work);
  else if (source != place::pageable)
    work.touches.push_back({source_address, bytes, false,
                            access == source_access::at_any_time && is_foreign(device, source_address, source),
                            devices.source});
  if (target != place::pageable) work.touches.push_back({destination, bytes, true, false, devices.target});
  if (reads_now) {
    auto staged = std::make_shared<std::vector<char>>(bytes_at(source_address), bytes_at(source_address) + bytes);
    work.run = [staged, destination] { std::memcpy(bytes_at(destination), staged->data(), staged->size()); };
  } else {
    work.run = [destination, source_address, bytes] {
      std::memmove(bytes_at(destination), bytes_at(source_address), bytes);
    };
  }
  if (wait && stream->capturing) {
    device.invalidate(*stream->capturing);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  bool const captured = stream->capturing != nullptr;
  if (CUresult const result = device.enqueue(stream, std::move(work)); result != CUDA_SUCCESS) return result;
  bool const to_pageable = target == place::pageable && !captured;
  bool const device_only = target == place::device && source == place::device;
  return to_pageable || (wait && !device_only) ? device.wait_for(stream, call) : CUDA_SUCCESS;
}

void report_overlaps(simulation& device, stream_ptr const& stream, std::span<CUdeviceptr const> targets,
                     std::span<CUdeviceptr const> sources, std::span<std::size_t const> bytes) {
  struct part {
    std::uint64_t begin;
    std::uint64_t end;
    std::size_t copy;
    bool write;
  };
  std::vector<part> parts;
  for (std::size_t i = 0; i < targets.size(); ++i)
    for (bool const write : {false, true}) {
      std::uint64_t const begin = write ? targets[i] : sources[i];
      if (bytes[i] != 0) parts.push_back({begin, begin + bytes[i], i, write});
    }
  std::sort(parts.begin(), parts.end(), [](part const& a, part const& b) { return a.begin < b.begin; });
  part const* last_read = nullptr; // the read that ends at the highest address so far
  part const* last_write = nullptr;
  for (part const& piece : parts) {
    part const* other = last_write;
    if (piece.write && last_read != nullptr && last_read->end > piece.begin) other = last_read;
    if (other != nullptr && other->end > piece.begin) {
      auto const [first, second] = std::minmax(other->copy, piece.copy);
      device.report_finding(finding_kind::unordered_access, "copies " + std::to_string(first) + " and " +
                                                                std::to_string(second) + " of a batch on stream " +
                                                                std::to_string(stream->id) +
                                                                " touch the same bytes, and a batch has no order");
    }
    part const*& last = piece.write ? last_write : last_read;
    if (last == nullptr || piece.end > last->end) last = &piece;
  }
}

CUresult fill(simulation& device, stream_ptr const& stream, std::uint64_t target, std::uint32_t value, unsigned width,
              std::size_t count) {
  if (count == 0) return CUDA_SUCCESS;
  if (target == 0 || target % width != 0 || place_of(device, target) == place::pageable)
    return CUDA_ERROR_INVALID_VALUE;
  operation work;
  work.action = "fill";
  work.duration = transfer_time(count * width);
  work.touches.push_back({target, count * width, true});
  work.run = [=] {
    if (width == 1) {
      std::memset(bytes_at(target), static_cast<int>(value), count);
      return;
    }
    for (std::size_t i = 0; i < count; ++i) std::memcpy(bytes_at(target) + i * width, &value, width);
  };
  return device.enqueue(stream, std::move(work));
}

} // namespace simulated
