// The tool's books, and its entry points for NVTX.
// SPDX-License-Identifier: Apache-2.0
#include "memory_tool.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <cuda.h>
#include <dlfcn.h>

#define NVTX_NO_IMPL
#define NVTX_AS_SYSTEM_HEADER
#include <nvtx3/nvToolsExtMem.h>

namespace test {
namespace {

template <class Function> Function* driver_function(char const* name) {
  return reinterpret_cast<Function*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), name));
}

template <class T> T attribute(CUpointer_attribute which, std::uintptr_t at) {
  static auto* const ask = driver_function<decltype(cuPointerGetAttribute)>("cuPointerGetAttribute");
  T value{};
  return ask(&value, which, at) == CUDA_SUCCESS ? value : T{};
}

bool context_is_current() {
  static auto* const ask = driver_function<decltype(cuCtxGetCurrent)>("cuCtxGetCurrent");
  CUcontext current = nullptr;
  return ask(&current) == CUDA_SUCCESS && current != nullptr;
}

template <class Ranges> bool overlaps(Ranges const& ranges, std::uintptr_t base, std::size_t bytes) {
  auto const above = ranges.lower_bound(base + bytes);
  if (above == ranges.begin()) return false;
  auto const& [start, held] = *std::prev(above);
  return start + held.bytes > base;
}

template <class Held> std::map<std::uintptr_t, std::size_t> bytes_of(std::map<std::uintptr_t, Held> const& ranges) {
  std::map<std::uintptr_t, std::size_t> result;
  for (auto const& [base, held] : ranges) result.emplace(base, held.bytes);
  return result;
}

} // namespace

memory_tool& memory_tool::instance() {
  static auto* const made = new memory_tool;
  return *made;
}

void memory_tool::reset() {
  std::scoped_lock const held{mutex_};
  faults_.clear();
  heap_calls_ = region_calls_ = 0;
  refuses_ = false;
}

void memory_tool::refuse_heaps(bool refuse) {
  std::scoped_lock const held{mutex_};
  refuses_ = refuse;
}

std::map<std::uintptr_t, std::size_t> memory_tool::heaps() const {
  std::scoped_lock const held{mutex_};
  return bytes_of(heaps_);
}

std::map<std::uintptr_t, std::size_t> memory_tool::regions() const {
  std::scoped_lock const held{mutex_};
  return bytes_of(regions_);
}

std::size_t memory_tool::region(void const* at) const {
  auto const all = regions();
  auto const found = all.find(reinterpret_cast<std::uintptr_t>(at));
  return found == all.end() ? 0 : found->second;
}

std::size_t memory_tool::heap_calls() const {
  std::scoped_lock const held{mutex_};
  return heap_calls_;
}

std::size_t memory_tool::region_calls() const {
  std::scoped_lock const held{mutex_};
  return region_calls_;
}

std::vector<std::string> memory_tool::faults() const {
  std::scoped_lock const held{mutex_};
  return faults_;
}

void memory_tool::fault(std::string what) { faults_.push_back(std::move(what)); }

// The tool accepts an allocation of the driver; it refuses mapped pages and memory of driver pools.
std::string memory_tool::wrong_with(std::uintptr_t base, std::size_t bytes) const {
  if (!context_is_current()) return "no context is current";
  auto const start = attribute<std::uintptr_t>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, base);
  auto const size = attribute<std::size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, base);
  if (size == 0 || base < start || base + bytes > start + size) return "the driver has not allocated the memory";
  if (attribute<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, base)) return "the memory is of a driver pool";
  if (!attribute<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, base)) return "the memory is mapped";
  return overlaps(heaps_, base, bytes) ? "the heaps overlap" : "";
}

void* memory_tool::add_heap(std::uintptr_t base, std::size_t bytes) {
  std::scoped_lock const held{mutex_};
  ++heap_calls_;
  if (refuses_) return nullptr;
  if (auto const wrong = wrong_with(base, bytes); !wrong.empty()) {
    fault("heap: " + wrong);
    return nullptr;
  }
  auto* const handle = reinterpret_cast<void*>(++handles_made_);
  heaps_.emplace(base, held_heap{bytes, handle});
  return handle;
}

void memory_tool::remove_heap(void* handle) {
  std::scoped_lock const held{mutex_};
  auto const found = std::ranges::find(heaps_, handle, [](auto const& each) { return each.second.handle; });
  if (found == heaps_.end()) return fault("end of a heap: there is no such heap");
  if (attribute<std::size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, found->first) == 0)
    fault("end of a heap: the memory has been freed already");
  if (overlaps(regions_, found->first, found->second.bytes)) fault("end of a heap: it has regions");
  heaps_.erase(found);
}

void memory_tool::add_region(void* in, std::uintptr_t at, std::size_t bytes) {
  std::scoped_lock const held{mutex_};
  ++region_calls_;
  auto const found = std::ranges::find(heaps_, in, [](auto const& each) { return each.second.handle; });
  if (!context_is_current()) fault("region: no context is current");
  if (found == heaps_.end()) return fault("region: there is no such heap");
  if (at < found->first || at + bytes > found->first + found->second.bytes) return fault("region: beyond its heap");
  if (overlaps(regions_, at, bytes)) return fault("region: the regions overlap");
  regions_.emplace(at, held_region{bytes, in});
}

void memory_tool::remove_region(std::uintptr_t at) {
  std::scoped_lock const held{mutex_};
  if (regions_.erase(at) == 0) fault("end of a region: there is no such region");
}

namespace {

nvtxMemHeapHandle_t register_heap(nvtxDomainHandle_t, nvtxMemHeapDesc_t const* heap) {
  auto& tool = memory_tool::instance();
  auto const& range = *static_cast<nvtxMemVirtualRangeDesc_t const*>(heap->typeSpecificDesc);
  bool const right = heap->extCompatID == NVTX_EXT_COMPATID_MEM && heap->structSize == sizeof *heap &&
                     heap->usage == NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR &&
                     heap->type == NVTX_MEM_TYPE_VIRTUAL_ADDRESS && heap->typeSpecificDescSize == sizeof range;
  if (!right) tool.fault("heap: one or more of the parameters is invalid");
  return static_cast<nvtxMemHeapHandle_t>(
      tool.add_heap(reinterpret_cast<std::uintptr_t>(range.ptr), right ? range.size : 0));
}

void unregister_heap(nvtxDomainHandle_t, nvtxMemHeapHandle_t heap) { memory_tool::instance().remove_heap(heap); }

void register_regions(nvtxDomainHandle_t, nvtxMemRegionsRegisterBatch_t const* batch) {
  auto& tool = memory_tool::instance();
  if (batch->extCompatID != NVTX_EXT_COMPATID_MEM || batch->structSize != sizeof *batch ||
      batch->regionType != NVTX_MEM_TYPE_VIRTUAL_ADDRESS ||
      batch->regionDescElementSize != sizeof(nvtxMemVirtualRangeDesc_t))
    return tool.fault("region: one or more of the parameters is invalid");
  auto const* const ranges = static_cast<nvtxMemVirtualRangeDesc_t const*>(batch->regionDescElements);
  for (std::size_t i = 0; i < batch->regionCount; ++i) {
    tool.add_region(batch->heap, reinterpret_cast<std::uintptr_t>(ranges[i].ptr), ranges[i].size);
  }
}

void unregister_regions(nvtxDomainHandle_t, nvtxMemRegionsUnregisterBatch_t const* batch) {
  auto& tool = memory_tool::instance();
  if (batch->extCompatID != NVTX_EXT_COMPATID_MEM || batch->structSize != sizeof *batch ||
      batch->refType != NVTX_MEM_REGION_REF_TYPE_POINTER || batch->refElementSize != sizeof *batch->refElements)
    return tool.fault("end of a region: one or more of the parameters is invalid");
  for (std::size_t i = 0; i < batch->refCount; ++i) {
    tool.remove_region(reinterpret_cast<std::uintptr_t>(batch->refElements[i].pointer));
  }
}

int attach(nvtxExtModuleInfo_t* module) {
  if (module->moduleId != NVTX_EXT_MODULEID_MEM || module->compatId != NVTX_EXT_COMPATID_MEM) return 0;
  auto* const slots = module->segments[0].functionSlots;
  slots[NVTX3EXT_CBID_nvtxMemHeapRegister] = reinterpret_cast<std::intptr_t>(&register_heap);
  slots[NVTX3EXT_CBID_nvtxMemHeapUnregister] = reinterpret_cast<std::intptr_t>(&unregister_heap);
  slots[NVTX3EXT_CBID_nvtxMemRegionsRegister] = reinterpret_cast<std::intptr_t>(&register_regions);
  slots[NVTX3EXT_CBID_nvtxMemRegionsUnregister] = reinterpret_cast<std::intptr_t>(&unregister_regions);
  return 1;
}

} // namespace
} // namespace test

/// NVTX calls the function to which this points when its memory interface is first used.
extern "C" NvtxExtInitializeInjectionFunc_t InitializeInjectionNvtxExtension_fnptr = &test::attach;
