// Shows a pool's chunks and blocks to profiling tools, by NVTX's interface for memory.
// SPDX-License-Identifier: Apache-2.0
module;
#if __has_include(<nvtx3/nvToolsExtMem.h>)
#define GPUMEM_HAS_NVTX 1
#define NVTX_AS_SYSTEM_HEADER
#include <nvtx3/nvToolsExtMem.h>
#endif
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <new>
#include <optional>
module gpumem:nvtx_heaps.impl;
import :nvtx_heaps;
import :device;
import :sync;

namespace gpumem::detail {
namespace {

std::uintptr_t address_of(void const* pointer) noexcept { return reinterpret_cast<std::uintptr_t>(pointer); }

#ifdef GPUMEM_HAS_NVTX
nvtxDomainHandle_t domain() noexcept {
  static auto const made = nvtxDomainCreateA("gpumem");
  return made;
}

// Returns whether a tool implements the memory interface. Such a tool has set the address of nvtxMemHeapRegister() when
// the initialisation returns. A call of that function as a test would count as an error of the program.
bool tool_listens() noexcept {
  static bool const result = [] {
    NVTX_EXT_MEM_VERSIONED_ID(nvtxExtMemInitOnce)();
    auto const function = NVTX_EXT_MEM_VERSIONED_ID(nvtxExtMemSlots)[NVTX3EXT_CBID_nvtxMemHeapRegister + 1];
    return function != NVTX_EXTENSION_FRESH && function != NVTX_EXTENSION_DISABLED;
  }();
  return result;
}

void* register_heap(void const* base, std::size_t bytes) noexcept {
  nvtxMemVirtualRangeDesc_t const range{bytes, base};
  nvtxMemHeapDesc_t heap{};
  heap.extCompatID = NVTX_EXT_COMPATID_MEM;
  heap.structSize = sizeof heap;
  heap.usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR;
  heap.type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
  heap.typeSpecificDescSize = sizeof range;
  heap.typeSpecificDesc = &range;
  // NVTX's header also defines the handle -1, for no tool. Its macro for that does not compile as C++.
  auto* const handle = nvtxMemHeapRegister(domain(), &heap);
  return reinterpret_cast<std::intptr_t>(handle) == -1 ? nullptr : handle;
}

void unregister_heap(void* handle) noexcept {
  nvtxMemHeapUnregister(domain(), static_cast<nvtxMemHeapHandle_t>(handle));
}

void register_region(void* heap, void const* block, std::size_t bytes) noexcept {
  nvtxMemVirtualRangeDesc_t const range{bytes, block};
  nvtxMemRegionsRegisterBatch_t batch{};
  batch.extCompatID = NVTX_EXT_COMPATID_MEM;
  batch.structSize = sizeof batch;
  batch.regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS;
  batch.heap = static_cast<nvtxMemHeapHandle_t>(heap);
  batch.regionCount = 1;
  batch.regionDescElementSize = sizeof range;
  batch.regionDescElements = &range;
  nvtxMemRegionsRegister(domain(), &batch);
}

void unregister_region(void const* block) noexcept {
  nvtxMemRegionRef_t const region{.pointer = block};
  nvtxMemRegionsUnregisterBatch_t batch{};
  batch.extCompatID = NVTX_EXT_COMPATID_MEM;
  batch.structSize = sizeof batch;
  batch.refType = NVTX_MEM_REGION_REF_TYPE_POINTER;
  batch.refCount = 1;
  batch.refElementSize = sizeof region;
  batch.refElements = &region;
  nvtxMemRegionsUnregister(domain(), &batch);
}
#else
bool tool_listens() noexcept { return false; }
void* register_heap(void const*, std::size_t) noexcept { return nullptr; }
void unregister_heap(void*) noexcept {}
void register_region(void*, void const*, std::size_t) noexcept {}
void unregister_region(void const*) noexcept {}
#endif

// The heaps of all pools. If one pool is the upstream of another, the chunks of the other are blocks of the first, and
// lie in a heap already. A heap must not be made inside a heap.
class heap_ranges {
public:
  static heap_ranges& instance() {
    static auto* const made = new heap_ranges;
    return *made;
  }
  // Returns false, and adds nothing, if a heap has bytes of the range. Throws std::bad_alloc.
  bool add(std::uintptr_t base, std::size_t bytes) {
    sync::lock const lock{mutex_};
    auto const above = ends_.upper_bound(base); // the first heap that ends after the base
    if (above != ends_.end() && above->second < base + bytes) return false;
    ends_.emplace(base + bytes, base);
    return true;
  }
  void remove(std::uintptr_t end) noexcept {
    sync::lock const lock{mutex_};
    ends_.erase(end);
  }

private:
  sync::mutex mutex_;
  std::map<std::uintptr_t, std::uintptr_t> ends_ __attribute__((guarded_by(mutex_))); // start of each heap by its end
};

} // namespace

std::unique_ptr<nvtx_heaps> nvtx_heaps::make(device device) {
  return tool_listens() ? std::make_unique<nvtx_heaps>(device) : nullptr;
}

// Makes the device current during the tool's functions, since a tool may ask the driver about the memory.
void nvtx_heaps::add_heap(void* base, std::size_t bytes) noexcept {
  auto const begin = address_of(base);
  context_guard const scope{device_.context()};
  sync::lock const lock{mutex_};
  try {
    if (!heap_ranges::instance().add(begin, bytes)) return;
    auto& made = heaps_[begin];
    made = {bytes, register_heap(base, bytes)};
    if (made.handle) return;
    heaps_.erase(begin);
  } catch (std::bad_alloc const&) {} // then the tool does not see the chunk
  heap_ranges::instance().remove(begin + bytes);
}

void nvtx_heaps::remove_heap(void* base) noexcept {
  context_guard const scope{device_.context()};
  sync::lock const lock{mutex_};
  auto const found = heaps_.find(address_of(base));
  if (found == heaps_.end()) return;
  unregister_heap(found->second.handle);
  heap_ranges::instance().remove(found->first + found->second.bytes);
  heaps_.erase(found);
}

void* nvtx_heaps::heap_of(std::uintptr_t block) noexcept {
  auto const above = heaps_.upper_bound(block);
  if (above == heaps_.begin()) return nullptr;
  auto const& [base, below] = *std::prev(above);
  return block - base < below.bytes ? below.handle : nullptr;
}

bool nvtx_heaps::add_region(void* block, std::size_t bytes) noexcept try {
  context_guard const scope{device_.context()};
  sync::lock const lock{mutex_};
  auto* const heap = heap_of(address_of(block));
  if (!heap) return true;
  regions_.emplace(address_of(block), bytes);
  register_region(heap, block, bytes);
  return true;
} catch (std::bad_alloc const&) { return false; }

void nvtx_heaps::remove_region(void* block, std::optional<std::size_t> bytes) noexcept {
  context_guard const scope{device_.context()};
  sync::lock const lock{mutex_};
  auto const found = regions_.find(address_of(block));
  if (found == regions_.end() || (bytes && *bytes != found->second)) return;
  unregister_region(block);
  regions_.erase(found);
}

} // namespace gpumem::detail
