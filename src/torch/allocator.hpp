// PyTorch's allocator of CUDA memory over gpumem. The Python module gpumem_torch compiles it against the headers of the
// installed PyTorch.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gpumem/gpumem_torch.h>

#include "history.hpp"
#include "versions.hpp"

#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

namespace gpumem_torch {

/// PyTorch's allocator of CUDA memory over gpumem's pools, one per device. It is made once and never destroyed, since
/// tensors are freed until the process ends. Any thread can call it. Its functions throw c10::Error.
class allocator final : public torch_cuda::CUDAAllocator {
public:
  /// Returns the one instance of the process.
  static allocator& instance();

  // Allocation and free.
  c10::DataPtr allocate(std::size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void* raw_alloc(std::size_t bytes) override;
  void* raw_alloc_with_stream(std::size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* pointer) override;
  void recordStream(c10::DataPtr const& data, c10::cuda::CUDAStream stream) override;
  using CUDAAllocator::recordStream;
  void copy_data(void* target, void const* source, std::size_t bytes) const override;

  /// Frees a block, whether or not the allocator is enabled.
  void free(void* pointer);

  // State of the allocator.
  void init(int device_count) override;
  bool initialized() override;
  void enable(bool value) override;
  bool isEnabled() const override;
  std::string name() override { return "gpumem"; }
  void emptyCache(MempoolId_t pool = {0, 0}) override;
  double getMemoryFraction(DeviceIndex device) override;
  void setMemoryFraction(double fraction, DeviceIndex device) override;

  // Statistics and records.
  DeviceStats getDeviceStats(DeviceIndex device) override;
  void resetAccumulatedStats(DeviceIndex device) override;
  void resetPeakStats(DeviceIndex device) override;
  void cacheInfo(DeviceIndex device, std::size_t* largest) override;
  void* getBaseAllocation(void* pointer, std::size_t* bytes) override;
#if GPUMEM_TORCH_AT_LEAST(10)
  std::vector<torch_cuda::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex) override { return {}; }
#endif
#if GPUMEM_TORCH_AT_LEAST(11)
  torch_cuda::SnapshotInfo snapshot(MempoolId_t pool, bool include_traces) override;
  void recordHistory(bool enabled, torch_cuda::CreateContextFn recorder, std::size_t max_entries,
                     torch_cuda::RecordContext context_mode, bool clear,
                     std::vector<std::string> const& skipped) override;
#else
  torch_cuda::SnapshotInfo snapshot(MempoolId_t pool) override;
  void recordHistory(bool enabled, torch_cuda::CreateContextFn recorder, std::size_t max_entries,
                     torch_cuda::RecordContext context_mode, bool clear) override;
#endif
  bool isHistoryEnabled() override { return history_.recording(); }
  void recordAnnotation(std::vector<std::pair<std::string, std::string>> const& pairs) override;
  void pushCompileContext(std::string& text) override;
  void popCompileContext() override;
#if GPUMEM_TORCH_AT_LEAST(10)
  void setUserMetadata(std::string const& text) override { history::user_metadata() = text; }
  std::string getUserMetadata() override { return history::user_metadata(); }
#endif
#if GPUMEM_TORCH_AT_LEAST(14)
  bool supportsUserMetadata() override { return true; }
#endif
#if GPUMEM_TORCH_AT_LEAST(12)
  std::shared_ptr<c10::GatheredContext> getContextForPointer(void const* pointer) override {
    return history_.context_of(pointer);
  }
#endif
  void attachOutOfMemoryObserver(torch_cuda::OutOfMemoryObserver observer) override;
  void attachAllocatorTraceTracker(torch_cuda::AllocatorTraceTracker tracker) override;
#if GPUMEM_TORCH_AT_LEAST(12)
  void attachOomRejectionObserver(torch_cuda::OomRejectionObserver) override {} // gpumem rejects no request in advance
#endif

  // Memory pools of PyTorch and graphs.
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override;
  void releasePool(DeviceIndex device, MempoolId_t pool) override;
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override;
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool,
                                std::unordered_set<void*> const& expected) override;
#if GPUMEM_TORCH_AT_LEAST(11)
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, std::shared_ptr<CUDAAllocator> segments) override;
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) override;
#else
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, CUDAAllocator* segments) override;
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool) override;
#endif
#if GPUMEM_TORCH_AT_LEAST(10)
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override;
#endif
  std::shared_ptr<torch_cuda::AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool) override;
  torch_cuda::CheckpointDelta setCheckpointPoolState(DeviceIndex device,
                                                     std::shared_ptr<torch_cuda::AllocatorState> state) override;

  // Several devices and processes.
  void enablePeerAccess(DeviceIndex device, DeviceIndex accessed) override;
  cudaError_t memcpyAsync(void* target, int to_device, void const* source, int from_device, std::size_t bytes,
                          cudaStream_t stream, bool peer_access) override;
  torch_cuda::ShareableHandle shareIpcHandle(void* pointer) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;

private:
  static constexpr int max_devices = 64;

  allocator();
  bool forked() const;
  static DeviceIndex device_of(void const* pointer);
  void* malloc_unrecorded(std::size_t bytes, DeviceIndex device, cudaStream_t stream, int promises);
  void* malloc_recorded(std::size_t bytes, DeviceIndex device, cudaStream_t stream, int promises);
  void* malloc(std::size_t bytes, DeviceIndex device, cudaStream_t stream, int promises);
  void* malloc_on_current(std::size_t bytes, DeviceIndex device);
  void* retry(std::size_t bytes, DeviceIndex device, cudaStream_t stream, int promises);
  static void report(void* pointer, std::int64_t bytes, DeviceIndex device);
  [[noreturn]] void throw_out_of_memory(std::size_t requested, DeviceIndex device, cudaStream_t stream);
  torch_cuda::SnapshotInfo snapshot_of(MempoolId_t pool, bool include_traces);
  void tell_allocated(void* pointer, std::size_t bytes, DeviceIndex device, cudaStream_t stream,
                      history::context context);
  void tell_freed(void* pointer);
  static void tell_pages(int device, void* address, std::size_t bytes, int mapped);
  void check_device(DeviceIndex device) const;

  std::atomic<int> devices_{0};
  std::atomic<bool> enabled_{true};
  pid_t const process_;
  struct device_state {
    std::atomic<double> fraction{1};
    std::atomic<std::int64_t> retries{0};
    std::atomic<std::int64_t> out_of_memory{0};
    std::atomic<std::int64_t> synchronizations{0};
  };
  device_state states_[max_devices];
  class history history_;
  std::mutex observers_mutex_;
  std::vector<torch_cuda::OutOfMemoryObserver> observers_;
};

/// Throws c10::Error with the text of gpumem_last_error unless the outcome is GPUMEM_GRANTED.
void check(gpumem_outcome outcome);

/// Returns the size that PyTorch's statistics show for a block: rounded up to a multiple of 512.
inline std::size_t rounded(std::size_t bytes) {
  constexpr std::size_t step = 512;
  return bytes > std::numeric_limits<std::size_t>::max() - step ? bytes : (bytes + step - 1) / step * step;
}

/// Returns the statistics of the device; zeros before its first allocation.
gpumem_torch_statistics statistics_of(DeviceIndex device);

} // namespace gpumem_torch
