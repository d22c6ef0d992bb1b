// gpumem as PyTorch's allocator: the record of what happened, and snapshots.
// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"

#include <gpumem/gpumem_torch.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

namespace {

using torch_cuda::RecordContext;
using torch_cuda::TraceEntry;
using actions = std::vector<int>;

std::atomic<int> contexts{0};

struct numbered : c10::GatheredContext {
  int number = ++contexts;
};

std::shared_ptr<c10::GatheredContext> gather() { return std::make_shared<numbered>(); }

int number_of(std::shared_ptr<c10::GatheredContext> const& context) {
  return context ? static_cast<numbered const&>(*context).number : 0;
}

void record(CUDAAllocator& torch, std::size_t most = 1000, RecordContext when = RecordContext::NEVER,
            std::vector<std::string> const& skipped = {}) {
  torch.recordHistory(true, gather, most, when, false, skipped);
}

std::vector<TraceEntry> trace(CUDAAllocator& torch, std::size_t device = 0) {
  return torch.snapshot({0, 0}, true).device_traces.at(device);
}

/// Returns the trace without the entries of pages, whose number is gpumem's own affair, and of snapshots.
std::vector<TraceEntry> blocks_in(std::vector<TraceEntry> trace) {
  trace.erase(std::remove_if(trace.begin(), trace.end(),
                             [](TraceEntry const& entry) {
                               return entry.action_ == TraceEntry::SEGMENT_MAP ||
                                      entry.action_ == TraceEntry::SEGMENT_UNMAP ||
                                      entry.action_ == TraceEntry::SNAPSHOT;
                             }),
              trace.end());
  return trace;
}

actions actions_of(std::vector<TraceEntry> const& trace) {
  actions found;
  for (auto const& entry : trace) found.push_back(entry.action_);
  return found;
}

bool has(std::vector<TraceEntry> const& trace, int action) {
  return std::any_of(trace.begin(), trace.end(), [=](auto const& entry) { return entry.action_ == action; });
}

std::size_t address(void const* pointer) { return reinterpret_cast<std::size_t>(pointer); }

void records_in_order() {
  auto& torch = installed();
  EXPECT(!torch.isHistoryEnabled());
  torch.allocate(mib).clear();
  EXPECT(trace(torch).empty());
  torch.emptyCache();
  record(torch);
  EXPECT(torch.isHistoryEnabled());

  auto const stream = new_stream();
  c10::cuda::setCurrentCUDAStream(stream);
  auto first = torch.allocate(1000);
  auto second = torch.allocate(3 * mib);
  auto* const first_pointer = first.get();
  first.clear();
  auto const all = trace(torch);
  EXPECT_EQUAL(all.at(0).action_, TraceEntry::SEGMENT_MAP);
  EXPECT(all[0].addr_ <= address(first_pointer) && address(first_pointer) < all[0].addr_ + all[0].size_);
  auto const blocks = blocks_in(all);
  EXPECT((actions_of(blocks) ==
          actions{TraceEntry::ALLOC, TraceEntry::ALLOC, TraceEntry::FREE_REQUESTED, TraceEntry::FREE_COMPLETED}));
  EXPECT(blocks.at(0).addr_ == address(first_pointer) && blocks[0].size_ == 1000);
  EXPECT(blocks.at(1).addr_ == address(second.get()) && blocks[1].size_ == 3 * mib);
  for (auto const& entry : {blocks.at(2), blocks.at(3)})
    EXPECT(entry.addr_ == address(first_pointer) && entry.size_ == 1000);
  for (auto const& entry : blocks) {
    EXPECT(entry.stream_ == stream.stream() && entry.device_ == 0 && entry.mempool_ == (MempoolId_t{0, 0}));
    EXPECT(entry.compile_context_ == "N/A" && entry.user_metadata_.empty() && !entry.context_);
  }
  EXPECT(std::is_sorted(all.begin(), all.end(), [](auto& a, auto& b) { return a.time_.t_ < b.time_.t_; }));
  constexpr time_t per_second = 1000000;
  EXPECT(std::abs(all.at(0).time_.t_ - std::time(nullptr) * per_second) < 100 * per_second);
  EXPECT(trace(torch, 1).empty());

  c10::cuda::setCurrentCUDAStream(c10::cuda::getDefaultCUDAStream());
  torch.allocate(64 * mib).clear();
  torch.emptyCache();
  EXPECT(has(trace(torch), TraceEntry::SEGMENT_UNMAP));
  EXPECT(has(trace(torch), TraceEntry::SNAPSHOT));
  EXPECT(torch.snapshot({0, 0}, false).device_traces.empty());
}

void records_each_device() {
  auto& torch = installed();
  record(torch);
  c10::cuda::CUDAGuard const guard{1};
  auto const data = torch.allocate(mib);
  EXPECT((actions_of(blocks_in(trace(torch, 1))) == actions{TraceEntry::ALLOC}));
  EXPECT(blocks_in(trace(torch, 0)).empty());
}

void records_out_of_memory() {
  auto& torch = installed();
  auto const held = torch.allocate(6 * gib);
  record(torch);
  EXPECT_OUT_OF_MEMORY(torch.allocate(3 * gib - 1), "Tried to allocate 3.00 GiB");
  auto const blocks = blocks_in(trace(torch));
  EXPECT((actions_of(blocks) == actions{TraceEntry::OOM}));
  EXPECT(blocks.at(0).size_ == 3 * gib && blocks[0].addr_ == 2 * gib);
}

void skips_actions() {
  auto& torch = installed();
  record(torch, 1000, RecordContext::NEVER, {"segment_map", "free_requested"});
  torch.allocate(mib).clear();
  EXPECT((actions_of(trace(torch)) == actions{TraceEntry::ALLOC, TraceEntry::FREE_COMPLETED}));
  EXPECT_THROWN(record(torch, 1000, RecordContext::NEVER, {"freed"}), "Unknown TraceEntry action: freed");
  EXPECT(torch.isHistoryEnabled());
}

std::vector<std::size_t> sizes_in(CUDAAllocator& torch) {
  std::vector<std::size_t> sizes;
  for (auto const& entry : trace(torch)) sizes.push_back(entry.size_);
  return sizes;
}

void keeps_the_newest_entries() {
  auto& torch = installed();
  std::vector<std::string> const skipped{"segment_map", "free_requested", "free_completed", "snapshot"};
  using sizes = std::vector<std::size_t>;
  record(torch, 3, RecordContext::NEVER, skipped);
  auto const allocate_up_to = [&](std::size_t first, std::size_t last) {
    for (auto size = first; size <= last; ++size) torch.allocate(size);
  };
  allocate_up_to(1, 2);
  EXPECT((sizes_in(torch) == sizes{1, 2}));
  allocate_up_to(3, 8);
  EXPECT((sizes_in(torch) == sizes{6, 7, 8}));
  record(torch, 2, RecordContext::NEVER, skipped);
  EXPECT((sizes_in(torch) == sizes{7, 8}));
  record(torch, 4, RecordContext::NEVER, skipped);
  allocate_up_to(9, 11);
  EXPECT((sizes_in(torch) == sizes{8, 9, 10, 11}));
  torch.recordHistory(true, nullptr, 4, RecordContext::NEVER, true, skipped);
  EXPECT(sizes_in(torch).empty());
  allocate_up_to(12, 12);
  torch.recordHistory(false, nullptr, 4, RecordContext::NEVER, false, {});
  EXPECT(sizes_in(torch).empty() && !torch.isHistoryEnabled());
}

// The level says which entries keep a context.
void gathers_contexts() {
  auto& torch = installed();
  EXPECT_THROWN(torch.recordHistory(true, nullptr, 10, RecordContext::ALL, false, {}),
                "contexts were asked for without a recorder");
  struct {
    RecordContext when;
    int of_block, of_allocation, of_free, gathered;
  } const levels[] = {{RecordContext::NEVER, 0, 0, 0, 0},
                      {RecordContext::STATE, 1, 0, 0, 1},
                      {RecordContext::ALLOC, 1, 1, 1, 1},
                      {RecordContext::ALL, 1, 1, 2, 2}};
  for (auto const& level : levels) {
    contexts = 0;
    torch.recordHistory(true, gather, 10, level.when, true, {"segment_map", "snapshot"});
    auto data = torch.allocate(mib);
    int of_block = 0;
    for (auto const& segment : torch.snapshot({0, 0}, false).segments) {
      for (auto const& block : segment.blocks) of_block += number_of(block.context_when_allocated);
    }
    EXPECT_EQUAL(of_block, level.of_block);
#if TORCH_VERSION_MINOR >= 15
    EXPECT_EQUAL(number_of(torch.getContextForPointer(data.get())), level.of_block);
#endif
    data.clear();
    auto const entries = trace(torch);
    EXPECT_EQUAL(number_of(entries.at(0).context_), level.of_allocation);
    EXPECT_EQUAL(number_of(entries.at(1).context_), level.of_free);
    EXPECT_EQUAL(number_of(entries.at(2).context_), level.of_free);
    EXPECT_EQUAL(contexts.load(), level.gathered);
  }
}

void pages_have_the_context_of_the_call() {
  auto& torch = installed();
  record(torch, 1000, RecordContext::STATE);
  auto const first = torch.allocate(mib);
  EXPECT_EQUAL(trace(torch).at(0).action_, TraceEntry::SEGMENT_MAP);
  EXPECT(!trace(torch).at(0).context_); // only live blocks have contexts
  contexts = 0;
  torch.recordHistory(true, gather, 1000, RecordContext::ALL, true, {});
  auto const second = torch.allocate(64 * mib);
  EXPECT_EQUAL(trace(torch).at(0).action_, TraceEntry::SEGMENT_MAP);
  EXPECT_EQUAL(number_of(trace(torch).at(0).context_), 1);
}

void texts_of_the_thread() {
  auto& torch = installed();
  record(torch, 1000, RecordContext::NEVER, {"segment_map", "snapshot"});
  std::string outer = "0/0";
  std::string inner = "1/0";
  torch.pushCompileContext(outer);
  torch.pushCompileContext(inner);
  torch.setUserMetadata("note");
  auto const first = torch.allocate(mib);
  gpumem_pool* pool = nullptr;
  EXPECT(gpumem_torch_pool(0, &pool) == GPUMEM_GRANTED && pool);
  EXPECT(gpumem_write_snapshot(pool, "labelled.json", nullptr) == GPUMEM_GRANTED);
  std::ostringstream labelled;
  labelled << std::ifstream{"labelled.json"}.rdbuf();
  std::remove("labelled.json");
  EXPECT(labelled.str().find("\"label\":\"note\"") != std::string::npos);
  torch.popCompileContext();
  auto const second = torch.allocate(mib);
  torch.popCompileContext();
  torch.popCompileContext(); // one too many does no harm
  EXPECT(torch.getUserMetadata() == "note");
#if TORCH_VERSION_MINOR >= 15
  EXPECT(torch.supportsUserMetadata());
#endif
  std::thread{[&] { torch.allocate(mib); }}.join();
  auto const entries = trace(torch);
  EXPECT(entries.at(0).compile_context_ == "1/0" && entries[0].user_metadata_ == "note");
  EXPECT(entries.at(1).compile_context_ == "0/0");
  EXPECT(entries.at(2).compile_context_ == "N/A" && entries[2].user_metadata_.empty());

  torch.recordAnnotation({{"name", "forward"}, {"stage", "start"}});
  auto const annotations = torch.snapshot({0, 0}, true).external_annotations;
  EXPECT_EQUAL(annotations.size(), 1);
  EXPECT(annotations.at(0).metadata_.at("name") == "forward" && annotations[0].metadata_.at("stage") == "start");
}

void trackers_hear_without_a_record() {
  auto& torch = installed();
  actions heard;
  torch.attachAllocatorTraceTracker([&](TraceEntry const& entry) { heard.push_back(entry.action_); });
  torch.allocate(mib).clear();
  EXPECT((heard ==
          actions{TraceEntry::SEGMENT_MAP, TraceEntry::ALLOC, TraceEntry::FREE_REQUESTED, TraceEntry::FREE_COMPLETED}));
  EXPECT(!torch.isHistoryEnabled());
  EXPECT(trace(torch).empty());
}

// Blocks that live when the record begins or ends are freed as others.
void begins_and_ends_between() {
  auto& torch = installed();
  auto before = torch.allocate(mib);
  record(torch, 1000, RecordContext::ALL);
  before.clear();
  EXPECT((actions_of(blocks_in(trace(torch))) == actions{TraceEntry::FREE_REQUESTED, TraceEntry::FREE_COMPLETED}));
  auto during = torch.allocate(mib);
  torch.recordHistory(false, nullptr, 1, RecordContext::NEVER, false, {});
  during.clear();
  EXPECT(trace(torch).empty());
  EXPECT_EQUAL(torch.getDeviceStats(0).allocation[0].current, 0);
}

void records_wrong_pointers() {
  auto& torch = installed();
  record(torch);
  auto* const block = torch.raw_alloc(mib);
  torch.raw_delete(block);
  EXPECT_THROWN(torch.raw_delete(block), "invalid device pointer: ");
  EXPECT_EQUAL(blocks_in(trace(torch)).size(), 3);
}

void records_several_threads() {
  auto& torch = installed();
  record(torch, 100000, RecordContext::ALL, {"segment_map"});
  std::vector<std::thread> threads;
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&torch] {
      for (std::size_t i = 1; i <= 100; ++i) torch.allocate(i * 1000);
    });
  }
  for (auto& each : threads) each.join();
  EXPECT_EQUAL(blocks_in(trace(torch)).size(), 4 * 100 * 3);
}

// Checks that blocks fill segments, which do not overlap, and that the sums are right. Returns the segments.
std::vector<torch_cuda::SegmentInfo> tiled(CUDAAllocator& torch, MempoolId_t pool = {0, 0}) {
  auto segments = torch.snapshot(pool, false).segments;
  std::map<std::size_t, std::size_t> ends;
  for (auto const& segment : segments) {
    std::size_t size = 0, allocated = 0, active = 0, requested = 0;
    for (auto const& block : segment.blocks) {
      size += block.size;
      auto const counted = (block.requested_size + 511) / 512 * 512; // as by the statistics
      allocated += block.allocated ? counted : 0;
      active += block.active ? counted : 0;
      requested += block.requested_size;
      EXPECT(block.requested_size <= block.size && block.size > 0);
    }
    EXPECT_EQUAL(size, segment.total_size);
    EXPECT_EQUAL(allocated, segment.allocated_size);
    EXPECT_EQUAL(active, segment.active_size);
    EXPECT_EQUAL(requested, segment.requested_size);
    ends[segment.address] = segment.address + size;
  }
  EXPECT_EQUAL(ends.size(), segments.size());
  for (auto at = ends.begin(); at != ends.end() && std::next(at) != ends.end(); ++at)
    EXPECT(at->second <= std::next(at)->first);
  return segments;
}

void snapshots_tile_the_memory() {
  auto& torch = installed();
  EXPECT(tiled(torch).empty());
  std::vector<c10::DataPtr> data;
  for (std::size_t i = 1; i <= 40; ++i) data.push_back(torch.allocate(i * 300 * kib + i));
  for (std::size_t i = 0; i < data.size(); i += 3) data[i].clear();
  c10::cuda::CUDAGuard const guard{1};
  auto const elsewhere = torch.allocate(mib);
  std::size_t sizes[2] = {0, 0};
  std::size_t requested = 0;
  std::map<std::size_t, std::size_t> live;
  for (auto const& segment : tiled(torch)) {
    sizes[segment.device] += segment.total_size;
    EXPECT(segment.is_expandable && segment.owner_private_pool_id == (MempoolId_t{0, 0}));
    auto at = segment.address;
    for (auto const& block : segment.blocks) {
      if (block.allocated) live[at] = block.requested_size;
      requested += block.requested_size;
      at += block.size;
    }
  }
  EXPECT_EQUAL(sizes[0], reserved(torch, 0));
  EXPECT_EQUAL(sizes[1], reserved(torch, 1));
  EXPECT_EQUAL(requested,
               torch.getDeviceStats(0).requested_bytes[0].current + torch.getDeviceStats(1).requested_bytes[0].current);
  for (std::size_t i = 0; i < data.size(); ++i)
    if (data[i]) EXPECT_EQUAL(live[address(data[i].get())], (i + 1) * 300 * kib + i + 1);
}

void snapshots_tell_the_pools() {
  auto& torch = installed();
  MempoolId_t const pool{0, 1};
  auto const outside = torch.allocate(mib);
  torch.createOrIncrefPool(0, pool, nullptr);
  torch.beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
  record(torch);
  auto const inside = torch.allocate(300 * kib);
  torch.endAllocateToPool(0, pool);
  EXPECT(blocks_in(trace(torch)).at(0).mempool_ == pool);
  std::size_t size = 0;
  for (auto const& segment : tiled(torch)) {
    size += segment.total_size;
    bool const holds =
        segment.address <= address(inside.get()) && address(inside.get()) < segment.address + segment.total_size;
    EXPECT((segment.owner_private_pool_id == pool) == holds);
  }
  EXPECT_EQUAL(size, reserved(torch));
  auto const of_pool = tiled(torch, pool);
  EXPECT_EQUAL(of_pool.size(), 1);
  EXPECT(of_pool.at(0).owner_private_pool_id == pool);
  EXPECT_EQUAL(of_pool[0].requested_size, 300 * kib);
  EXPECT(tiled(torch, {0, 2}).empty());
}

constexpr test tests[] = {
    {"records_in_order", records_in_order},
    {"records_each_device", records_each_device},
    {"records_out_of_memory", records_out_of_memory},
    {"skips_actions", skips_actions},
    {"keeps_the_newest_entries", keeps_the_newest_entries},
    {"gathers_contexts", gathers_contexts},
    {"pages_have_the_context_of_the_call", pages_have_the_context_of_the_call},
    {"texts_of_the_thread", texts_of_the_thread},
    {"trackers_hear_without_a_record", trackers_hear_without_a_record},
    {"begins_and_ends_between", begins_and_ends_between},
    {"records_wrong_pointers", records_wrong_pointers},
    {"records_several_threads", records_several_threads},
    {"snapshots_tile_the_memory", snapshots_tile_the_memory},
    {"snapshots_tell_the_pools", snapshots_tell_the_pools},
};

} // namespace

int main(int count, char** arguments) { return run_test(tests, count, arguments); }
