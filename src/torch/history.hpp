// The record of PyTorch's allocations and frees, for torch.cuda.memory._record_memory_history and _snapshot.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "versions.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace gpumem_torch {

/// A block as PyTorch requested it.
struct block_description {
  DeviceIndex device = 0;
  std::size_t bytes = 0;
  cudaStream_t stream = nullptr;
  MempoolId_t pool{0, 0};
};

/// Records the last actions (allocations, frees, and others) and, for live blocks, the context of the allocation. A
/// context is data that PyTorch's recorder gathers, for instance a Python stack. A tracker is a function of PyTorch
/// that gets each action. Records are never destroyed at exit, since contexts belong to Python. Any thread can call all
/// functions. The recorder and the trackers are called without a lock of gpumem.
class history {
public:
  using context = std::shared_ptr<c10::GatheredContext>;

  /// Returns whether actions must be told to this object: a recording is on, trackers are attached, or recorded blocks
  /// are live.
  bool active() const { return active_.load(std::memory_order_relaxed); }
  bool recording() const { return recording_.load(std::memory_order_relaxed); }

  /// Starts or ends the record; see torch.cuda.memory._record_memory_history.
  void record(bool enabled, torch_cuda::CreateContextFn recorder, std::size_t max_entries,
              torch_cuda::RecordContext context_mode, bool clear, std::vector<std::string> const& skipped);
  void attach(torch_cuda::AllocatorTraceTracker tracker);

  /// Returns the context of the calling thread, from PyTorch's recorder; null if the recording asks for none at this
  /// level.
  context gather(torch_cuda::RecordContext level) const;

  void allocated(void* pointer, block_description const& block, context context);
  /// `context` is the context of the free. If it is null, the entry gets the context of the allocation.
  void freed(void* pointer, block_description const& block, context context);
  void told(torch_cuda::TraceEntry::Action action, DeviceIndex device, std::size_t address, std::size_t bytes,
            cudaStream_t stream, MempoolId_t pool, context context);
  void annotate(DeviceIndex device, std::vector<std::pair<std::string, std::string>> const& pairs);

  /// Returns the context in which a live block was allocated; null if none was recorded.
  context context_of(void const* pointer);
  /// Returns the entries of each device, the oldest first, with times in microseconds since 1970.
  std::vector<std::vector<torch_cuda::TraceEntry>> traces(int devices);
  std::vector<annotation_entry> annotations();

  // Texts of the calling thread, which are added to its entries.
  static void push_compile_context(std::string const& text);
  static void pop_compile_context();
  static std::string& user_metadata();

private:
  // A ring buffer of the newest entries.
  template <class Entry> struct ring {
    std::vector<Entry> entries;
    std::size_t next = 0;
    void add(Entry& entry, std::size_t most);
    std::vector<Entry> in_order() const;
  };

  std::atomic<bool> active_{false};
  std::atomic<bool> recording_{false};
  std::atomic<torch_cuda::CreateContextFn> recorder_{nullptr};
  std::atomic<torch_cuda::RecordContext> when_{torch_cuda::RecordContext::NEVER};

  // Converts clock ticks to times; works only for ticks after its construction.
  c10::ApproximateClockToUnixTimeConverter clock_;

  std::mutex mutex_;
  std::size_t most_ = 1;
  std::unordered_set<int> skipped_;
  std::unordered_map<DeviceIndex, ring<torch_cuda::TraceEntry>> rings_;
  ring<annotation_entry> annotations_;
  std::unordered_map<void const*, context> live_; // blocks allocated during a recording or with a tracker
  std::vector<torch_cuda::AllocatorTraceTracker> trackers_;
};

/// While it lives, the record shows this context for pages that the calling thread maps or unmaps.
class call_context {
public:
  explicit call_context(history::context context);
  call_context(call_context const&) = delete;
  call_context& operator=(call_context const&) = delete;
  ~call_context();
};

} // namespace gpumem_torch
