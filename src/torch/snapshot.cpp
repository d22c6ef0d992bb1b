// PyTorch's allocator over gpumem: snapshots of the memory, and the record of allocations and frees.
// SPDX-License-Identifier: Apache-2.0
#include "allocator.hpp"
#include "settings.hpp"

#include <c10/cuda/CUDAFunctions.h>

#include <exception>
#include <utility>

namespace gpumem_torch {
namespace {

using torch_cuda::SegmentInfo;
using torch_cuda::SnapshotInfo;

// Converts the ranges of one device to PyTorch's segments. A segment is a region of contiguous memory of one pool.
struct collector {
  DeviceIndex device;
  MempoolId_t asked;
  history& contexts;
  std::vector<SegmentInfo>& segments;
  void* region = nullptr;
  MempoolId_t pool{0, 0};
  std::size_t end = 0;

  void add(gpumem_range const& range, MempoolId_t pool_id) {
    auto const address = reinterpret_cast<std::size_t>(range.base);
    if (asked != MempoolId_t{0, 0} && asked != pool_id) return;
    if (segments.empty() || range.region != region || pool_id != pool || address != end ||
        segments.back().device != device) {
      SegmentInfo segment;
      segment.device = device;
      segment.address = address;
      segment.is_large = true;
      segment.is_expandable = true;
      segment.owner_private_pool_id = pool_id;
#if GPUMEM_TORCH_AT_LEAST(11)
      segment.registration_counter = static_cast<std::int32_t>(segments.size());
#endif
      segments.push_back(std::move(segment));
    }
    region = range.region;
    pool = pool_id;
    end = address + range.bytes;
    auto& segment = segments.back();
    torch_cuda::BlockInfo block;
    block.size = range.bytes;
    block.requested_size = range.requested;
    block.allocated = block.active = range.live != 0;
    if (range.live) block.context_when_allocated = contexts.context_of(range.base);
    segment.total_size += block.size;
    segment.requested_size += block.requested_size;
    segment.allocated_size += range.live ? rounded(room_for(block.requested_size)) : 0; // as in the statistics
    segment.active_size = segment.allocated_size;
    segment.blocks.push_back(std::move(block));
  }
};

// The context (such as a stack trace) of the allocator's call that this thread runs. Pages that the call maps or unmaps
// are recorded with this context.
thread_local history::context context_of_call;

} // namespace

call_context::call_context(history::context context) { context_of_call = std::move(context); }
call_context::~call_context() { context_of_call.reset(); }

// Runs under a lock of the pool, and perhaps on gpumem's own thread. So it must not throw.
void allocator::tell_pages(int device, void* address, std::size_t bytes, int mapped) {
  auto& history = instance().history_;
  if (!history.active()) return;
  try {
    auto const action = mapped ? torch_cuda::TraceEntry::SEGMENT_MAP : torch_cuda::TraceEntry::SEGMENT_UNMAP;
    history.told(action, static_cast<DeviceIndex>(device), reinterpret_cast<std::size_t>(address), bytes, nullptr,
                 {0, 0}, context_of_call);
  } catch (std::exception const& error) { TORCH_WARN("gpumem: a tracker of pages has failed: ", error.what()); }
}

DeviceIndex allocator::device_of(void const* pointer) {
  gpumem_torch_block block{};
  block.size = sizeof block;
  check(gpumem_torch_describe_block(pointer, &block));
  return static_cast<DeviceIndex>(block.device);
}

SnapshotInfo allocator::snapshot_of(MempoolId_t pool, bool include_traces) {
  SnapshotInfo snapshot;
  snapshot.config_metadata = shown_settings();
  int const devices = devices_.load();
  if (include_traces) {
    snapshot.device_traces = history_.traces(devices);
    snapshot.external_annotations = history_.annotations();
  }
  std::size_t active = 0;
  for (int device = 0; device < devices; ++device) {
    collector to{static_cast<DeviceIndex>(device), pool, history_, snapshot.segments};
    check(gpumem_torch_visit_ranges(
        device,
        [](void* context, gpumem_range const* range, unsigned long long first, unsigned long long second) {
          static_cast<collector*>(context)->add(*range, {first, second});
        },
        &to));
  }
  for (auto const& segment : snapshot.segments) active += segment.active_size;
  if (history_.active()) history_.told(torch_cuda::TraceEntry::SNAPSHOT, 0, 0, active, nullptr, pool, nullptr);
  return snapshot;
}

#if GPUMEM_TORCH_AT_LEAST(11)
SnapshotInfo allocator::snapshot(MempoolId_t pool, bool include_traces) { return snapshot_of(pool, include_traces); }

void allocator::recordHistory(bool enabled, torch_cuda::CreateContextFn recorder, std::size_t max_entries,
                              torch_cuda::RecordContext context_mode, bool clear,
                              std::vector<std::string> const& skipped) {
  history_.record(enabled, recorder, max_entries, context_mode, clear, skipped);
}
#else
SnapshotInfo allocator::snapshot(MempoolId_t pool) { return snapshot_of(pool, true); }

void allocator::recordHistory(bool enabled, torch_cuda::CreateContextFn recorder, std::size_t max_entries,
                              torch_cuda::RecordContext context_mode, bool clear) {
  history_.record(enabled, recorder, max_entries, context_mode, clear, {});
}
#endif

void allocator::attachAllocatorTraceTracker(torch_cuda::AllocatorTraceTracker tracker) {
  history_.attach(std::move(tracker));
}

void allocator::recordAnnotation(std::vector<std::pair<std::string, std::string>> const& pairs) {
  if (history_.recording()) history_.annotate(c10::cuda::current_device(), pairs);
}

void allocator::pushCompileContext(std::string& text) {
  if (history_.recording()) history::push_compile_context(text);
}

void allocator::popCompileContext() {
  if (history_.recording()) history::pop_compile_context();
}

void* allocator::malloc_recorded(std::size_t bytes, DeviceIndex device, cudaStream_t stream, int promises) {
  auto where = history_.gather(torch_cuda::RecordContext::STATE);
  void* pointer = nullptr;
  {
    call_context const of_pages{where};
    pointer = malloc_unrecorded(bytes, device, stream, promises);
  }
  tell_allocated(pointer, bytes, device, stream, std::move(where));
  return pointer;
}

namespace {

// Names a block of the device's pool in gpumem's snapshots by the text of torch.cuda.memory._set_memory_metadata.
// Blocks of PyTorch's memory pools stay unnamed.
void label(void const* pointer, DeviceIndex device, gpumem_torch_block const& block) {
  auto const& text = history::user_metadata();
  gpumem_pool* pool = nullptr;
  if (text.empty() || block.pool[0] != 0 || block.pool[1] != 0) return;
  if (gpumem_torch_pool(device, &pool) == GPUMEM_GRANTED && pool) gpumem_set_label(pool, pointer, text.c_str());
}

} // namespace

void allocator::tell_allocated(void* pointer, std::size_t bytes, DeviceIndex device, cudaStream_t stream,
                               history::context context) {
  gpumem_torch_block block{};
  block.size = sizeof block;
  check(gpumem_torch_describe_block(pointer, &block));
  label(pointer, device, block);
  history_.allocated(pointer, {device, bytes, stream, {block.pool[0], block.pool[1]}}, std::move(context));
}

// Called before the block is freed: afterwards another thread may get the address.
void allocator::tell_freed(void* pointer) {
  gpumem_torch_block block{};
  block.size = sizeof block;
  TORCH_CHECK(gpumem_torch_describe_block(pointer, &block) == GPUMEM_GRANTED && block.device >= 0,
              "invalid device pointer: ", pointer);
  history_.freed(pointer,
                 {static_cast<DeviceIndex>(block.device), block.bytes, block.stream, {block.pool[0], block.pool[1]}},
                 history_.gather(torch_cuda::RecordContext::ALL));
}

} // namespace gpumem_torch
