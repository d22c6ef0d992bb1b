// PyTorch's allocator over gpumem: memory that several processes share, as pages or by CUDA's IPC handles.
// SPDX-License-Identifier: Apache-2.0
#include "allocator.hpp"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace gpumem_torch {
namespace {

// The form of PyTorch's handles: a version, a letter, and the rest. After the letter `c`, for memory of cudaMalloc,
// comes CUDA's IPC handle. After `g`, for gpumem's pages, comes their name.
#if GPUMEM_TORCH_AT_LEAST(15)
constexpr char version = 3;
#else
constexpr char version = 2;
#endif
constexpr char of_malloc = 'c';
constexpr char of_pages = 'g';
constexpr std::size_t header = 2;

// The memory that this process has opened from other processes, by device and handle. CUDA allows a process to open an
// IPC handle only once.
struct open_memory {
  std::mutex mutex;
  std::unordered_map<std::string, std::weak_ptr<void>> known;
  std::vector<void*> waiting; // pages without users that could not be unmapped yet
};

open_memory& opened() {
  static auto* const all = new open_memory; // never destroyed, since tensors are freed until the process ends
  return *all;
}

// Unmaps the pages without users. The wait for the device, which comes first, can fail if the device has no memory
// left. Then the pages stay until the next call.
void close_waiting(open_memory& memory) {
  std::erase_if(memory.waiting, [](void* base) { return gpumem_torch_close_shared(base) == GPUMEM_GRANTED; });
}

void* open_malloc(std::string const& text) {
  TORCH_CHECK(text.size() == header + sizeof(cudaIpcMemHandle_t), "unexpected or illformed shareable handle type");
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, text.data() + header, sizeof handle);
  void* memory = nullptr;
  C10_CUDA_CHECK(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess));
  return memory;
}

void* open_pages(std::string const& text, DeviceIndex device) {
  void* memory = nullptr;
  check(gpumem_torch_open_shared(text.c_str() + header, device, &memory));
  return memory;
}

// Ends the use of opened memory when its last tensor has gone.
void close_memory(std::string const& key, bool pages, DeviceIndex device, void* memory) {
  auto& opened_pages = opened();
  std::lock_guard const erasing{opened_pages.mutex};
  if (pages) {
    opened_pages.waiting.push_back(memory);
    close_waiting(opened_pages);
  } else {
    c10::cuda::CUDAGuard const guard{device};
    static_cast<void>(cudaIpcCloseMemHandle(memory)); // fails if the driver has shut down
  }
  auto const entry = opened_pages.known.find(key);
  if (entry != opened_pages.known.end() && entry->second.expired()) opened_pages.known.erase(entry);
}

} // namespace

torch_cuda::ShareableHandle allocator::shareIpcHandle(void* pointer) {
  std::size_t offset = 0;
  char name[GPUMEM_TORCH_NAME_SIZE];
  std::string text{version};
  if (gpumem_torch_share_block(pointer, name, &offset) == GPUMEM_GRANTED)
    return {static_cast<ptrdiff_t>(offset), text + of_pages + name};
  std::string const reason = gpumem_last_error();
  std::size_t bytes = 0;
  auto* const base = getBaseAllocation(pointer, &bytes);
  cudaIpcMemHandle_t handle;
  if (auto const failed = cudaIpcGetMemHandle(&handle, base); failed != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    TORCH_CHECK(false, "gpumem: this memory cannot be shared between processes. As pages: ", reason,
                ". By cudaIpcGetMemHandle: ", cudaGetErrorString(failed));
  }
  text += of_malloc;
  text.append(reinterpret_cast<char const*>(&handle), sizeof handle);
  return {static_cast<char*>(pointer) - static_cast<char*>(base), std::move(text)};
}

std::shared_ptr<void> allocator::getIpcDevPtr(std::string text) {
  bool const pages = text.size() > header && text[1] == of_pages;
  TORCH_CHECK(text.size() > header && text[0] <= version && (pages || text[1] == of_malloc),
              "unexpected or illformed shareable handle type");
  auto const device = c10::cuda::current_device();
  auto const key = std::to_string(device) + ":" + text;
  auto& all = opened();
  std::lock_guard const lock{all.mutex};
  close_waiting(all);
  if (auto const known = all.known[key].lock()) return known;
  auto* const memory = pages ? open_pages(text, device) : open_malloc(text);
  std::shared_ptr<void> made{memory, [key, pages, device](void* closed) { close_memory(key, pages, device, closed); }};
  all.known[key] = made;
  return made;
}

} // namespace gpumem_torch
