// The record of PyTorch's allocations and frees.
// SPDX-License-Identifier: Apache-2.0
#include "history.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace gpumem_torch {
namespace {

using torch_cuda::RecordContext;
using torch_cuda::TraceEntry;

thread_local std::vector<std::string> compile_contexts;

// Returns the action that has this name in PyTorch's Python interface.
int action_of(std::string const& name) {
  static auto const* const names = new std::map<std::string, int>{{"alloc", TraceEntry::ALLOC},
                                                                  {"free_requested", TraceEntry::FREE_REQUESTED},
                                                                  {"free_completed", TraceEntry::FREE_COMPLETED},
                                                                  {"segment_alloc", TraceEntry::SEGMENT_ALLOC},
                                                                  {"segment_free", TraceEntry::SEGMENT_FREE},
                                                                  {"segment_map", TraceEntry::SEGMENT_MAP},
                                                                  {"segment_unmap", TraceEntry::SEGMENT_UNMAP},
                                                                  {"snapshot", TraceEntry::SNAPSHOT},
                                                                  {"oom", TraceEntry::OOM}};
  auto const found = names->find(name);
  TORCH_CHECK(found != names->end(), "Unknown TraceEntry action: ", name);
  return found->second;
}

} // namespace

// Adds the entry. A full ring drops its oldest entry and leaves that in `entry`, for the caller to destroy.
template <class Entry> void history::ring<Entry>::add(Entry& entry, std::size_t most) {
  if (entries.size() < most) return entries.push_back(std::move(entry));
  next %= most;
  std::swap(entries[next++], entry);
}

template <class Entry> std::vector<Entry> history::ring<Entry>::in_order() const {
  std::vector<Entry> all;
  all.reserve(entries.size());
  auto const first = entries.begin() + static_cast<std::ptrdiff_t>(next % std::max<std::size_t>(entries.size(), 1));
  all.insert(all.end(), first, entries.end());
  all.insert(all.end(), entries.begin(), first);
  return all;
}

void history::record(bool enabled, torch_cuda::CreateContextFn recorder, std::size_t max_entries,
                     RecordContext context_mode, bool clear, std::vector<std::string> const& skipped) {
  TORCH_CHECK(context_mode == RecordContext::NEVER || recorder, "gpumem: contexts were asked for without a recorder");
  std::unordered_set<int> actions;
  for (auto const& name : skipped) actions.insert(action_of(name));
  decltype(rings_) old; // destroyed without the lock, since contexts may call PyTorch then
  decltype(annotations_) old_annotations;
  {
    std::lock_guard const lock{mutex_};
    recorder_ = enabled ? recorder : nullptr;
    when_ = enabled ? context_mode : RecordContext::NEVER;
    skipped_ = std::move(actions);
    max_entries = std::max<std::size_t>(max_entries, 1);
    if (!enabled || clear || max_entries != most_) {
      std::swap(old, rings_);
      std::swap(old_annotations, annotations_);
    }
    if (enabled && !clear && max_entries != most_) { // keep the newest entries that fit
      for (auto& [device, entries] : old) {
        for (auto& entry : entries.in_order()) rings_[device].add(entry, max_entries);
      }
    }
    most_ = max_entries;
    recording_ = enabled;
    active_ = enabled || !trackers_.empty() || !live_.empty();
  }
}

void history::attach(torch_cuda::AllocatorTraceTracker tracker) {
  std::lock_guard const lock{mutex_};
  trackers_.push_back(std::move(tracker));
  active_ = true;
}

history::context history::gather(RecordContext level) const {
  auto const recorder = recorder_.load(std::memory_order_relaxed);
  return recorder && when_.load(std::memory_order_relaxed) >= level ? recorder() : nullptr;
}

void history::allocated(void* pointer, block_description const& block, context context) {
  {
    std::lock_guard const lock{mutex_};
    if (!recording_.load() && trackers_.empty()) return; // only frees are still handled, to empty `live_`
    live_[pointer] = context;
  }
  told(TraceEntry::ALLOC, block.device, reinterpret_cast<std::size_t>(pointer), block.bytes, block.stream, block.pool,
       std::move(context));
}

void history::freed(void* pointer, block_description const& block, context call_site) {
  context allocation_context;
  {
    std::lock_guard const lock{mutex_};
    auto const found = live_.find(pointer);
    if (found != live_.end()) {
      allocation_context = std::move(found->second);
      live_.erase(found);
    }
    if (!recording_.load() && trackers_.empty()) {
      active_ = !live_.empty();
      return;
    }
  }
  if (!call_site) call_site = allocation_context;
  auto const address = reinterpret_cast<std::size_t>(pointer);
  told(TraceEntry::FREE_REQUESTED, block.device, address, block.bytes, block.stream, block.pool, call_site);
  told(TraceEntry::FREE_COMPLETED, block.device, address, block.bytes, block.stream, block.pool, std::move(call_site));
}

void history::told(TraceEntry::Action action, DeviceIndex device, std::size_t address, std::size_t bytes,
                   cudaStream_t stream, MempoolId_t pool, context context) {
  if (when_.load(std::memory_order_relaxed) < RecordContext::ALLOC) context = nullptr; // it describes live blocks only
  TraceEntry entry{action,
                   device,
                   address,
                   bytes,
                   stream,
                   pool,
                   c10::getApproximateTime(),
                   std::move(context),
                   compile_contexts.empty() ? "N/A" : compile_contexts.back()
#if GPUMEM_TORCH_AT_LEAST(10)
                       ,
                   user_metadata()
#endif
  };
  decltype(trackers_) trackers;
  {
    std::lock_guard const lock{mutex_};
    trackers = trackers_;
  }
  for (auto const& tracker : trackers) tracker(entry);
  std::lock_guard const lock{mutex_};
  if (recording_.load(std::memory_order_relaxed) && skipped_.count(action) == 0) rings_[device].add(entry, most_);
}

void history::annotate(DeviceIndex device, std::vector<std::pair<std::string, std::string>> const& pairs) {
  if (!recording()) return;
  annotation_entry entry{device, c10::getApproximateTime()};
  for (auto const& [name, value] : pairs) entry.recordUserMetadata(name, value);
  std::lock_guard const lock{mutex_};
  annotations_.add(entry, most_);
}

history::context history::context_of(void const* pointer) {
  std::lock_guard const lock{mutex_};
  auto const found = live_.find(pointer);
  return found == live_.end() ? nullptr : found->second;
}

std::vector<std::vector<TraceEntry>> history::traces(int devices) {
  auto const nanoseconds = clock_.makeConverter();
  std::vector<std::vector<TraceEntry>> all(static_cast<std::size_t>(devices));
  std::lock_guard const lock{mutex_};
  for (auto const& [device, entries] : rings_) {
    if (device >= devices) continue;
    auto& of_device = all[static_cast<std::size_t>(device)] = entries.in_order();
    for (auto& entry : of_device) entry.time_.t_ = nanoseconds(entry.time_.approx_t_) / 1000;
  }
  return all;
}

std::vector<annotation_entry> history::annotations() {
  auto const nanoseconds = clock_.makeConverter();
  std::lock_guard const lock{mutex_};
  auto all = annotations_.in_order();
  for (auto& entry : all) entry.time_.t_ = nanoseconds(entry.time_.approx_t_) / 1000;
  return all;
}

void history::push_compile_context(std::string const& text) { compile_contexts.push_back(text); }

void history::pop_compile_context() {
  if (!compile_contexts.empty()) compile_contexts.pop_back();
}

std::string& history::user_metadata() {
  thread_local std::string text;
  return text;
}

} // namespace gpumem_torch
