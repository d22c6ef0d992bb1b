// PyTorch's allocator over gpumem: memory that several processes share by CUDA's IPC handles.
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

namespace gpumem_torch {
namespace {

// The form of PyTorch's handles: a version, the letter `c` for memory of cudaMalloc, and CUDA's IPC handle.
#if GPUMEM_TORCH_AT_LEAST(15)
constexpr char version = 3;
#else
constexpr char version = 2;
#endif
constexpr char of_malloc = 'c';
constexpr std::size_t header = 2;

// The memory that this process has opened from other processes, by handle. CUDA allows a process to open a handle only
// once.
struct open_memory {
  std::mutex mutex;
  std::unordered_map<std::string, std::weak_ptr<void>> known;
};

open_memory& opened() {
  static auto* const all = new open_memory; // never destroyed, since tensors are freed until the process ends
  return *all;
}

} // namespace

torch_cuda::ShareableHandle allocator::shareIpcHandle(void* pointer) {
  std::size_t bytes = 0;
  auto* const base = getBaseAllocation(pointer, &bytes);
  cudaIpcMemHandle_t handle;
  if (auto const failed = cudaIpcGetMemHandle(&handle, base); failed != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    TORCH_CHECK(false,
                "gpumem: cudaIpcGetMemHandle cannot share this memory between processes: ", cudaGetErrorString(failed),
                ". It never shares memory that is mapped page by page; over chunks it can: ",
                "gpumem_torch.install(\"pages=off\").");
  }
  std::string text{version, of_malloc};
  text.append(reinterpret_cast<char const*>(&handle), sizeof handle);
  return {static_cast<char*>(pointer) - static_cast<char*>(base), std::move(text)};
}

std::shared_ptr<void> allocator::getIpcDevPtr(std::string text) {
  TORCH_CHECK(text.size() == header + sizeof(cudaIpcMemHandle_t) && text[0] <= version && text[1] == of_malloc,
              "unexpected or illformed shareable handle type");
  auto& all = opened();
  std::lock_guard const held{all.mutex};
  if (auto const known = all.known[text].lock()) return known;
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, text.data() + header, sizeof handle);
  void* memory = nullptr;
  C10_CUDA_CHECK(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess));
  auto const device = c10::cuda::current_device();
  std::shared_ptr<void> made{memory, [text, device](void* closed) {
                               auto& from = opened();
                               std::lock_guard const erasing{from.mutex};
                               c10::cuda::CUDAGuard const guard{device};
                               static_cast<void>(cudaIpcCloseMemHandle(closed)); // fails if the driver has shut down
                               auto const entry = from.known.find(text);
                               if (entry != from.known.end() && entry->second.expired()) from.known.erase(entry);
                             }};
  all.known[text] = made;
  return made;
}

} // namespace gpumem_torch
