// gpumem as PyTorch's allocator: its pools and graphs, several devices.
// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>

namespace {

constexpr MempoolId_t first{0, 1};
constexpr MempoolId_t second{0, 2};

bool always(cudaStream_t) { return true; }

/// Returns whether the pool's memory has the address.
bool holds(CUDAAllocator& torch, MempoolId_t pool, void const* pointer) {
  auto const address = reinterpret_cast<std::size_t>(pointer);
  for (auto const& segment : torch.snapshot(pool, false).segments) {
    if (segment.address <= address && address < segment.address + segment.total_size) return true;
  }
  return false;
}

void counts_uses() {
  auto& torch = installed();
  EXPECT_THROWN(torch.getPoolUseCount(0, first), "there is no pool 0, 1");
  torch.createOrIncrefPool(0, first, nullptr);
  EXPECT_EQUAL(torch.getPoolUseCount(0, first), 1);
  torch.createOrIncrefPool(0, first, nullptr);
  torch.beginAllocateToPool(0, first, always);
  EXPECT_EQUAL(torch.getPoolUseCount(0, first), 3);
  torch.endAllocateToPool(0, first);
  EXPECT_EQUAL(torch.getPoolUseCount(0, first), 3);
  for (int i = 0; i < 3; ++i) torch.releasePool(0, first);
  torch.releasePool(0, second); // there is none
  EXPECT_EQUAL(torch.getPoolUseCount(0, first), 0);
  torch.emptyCache(first);
  EXPECT_THROWN(torch.getPoolUseCount(0, first), "there is no pool 0, 1");
}

void nested_pools() {
  auto& torch = installed();
  auto const other = new_stream();
  EXPECT_THROWN(torch.endAllocateToPool(0, first), "endAllocatePool: not currently recording to mempool_id");
  torch.beginAllocateToPool(0, first, always);
  auto const in_first = torch.allocate(mib);
  torch.beginAllocateToPool(0, second, [&](cudaStream_t stream) { return stream == other.stream(); });
  EXPECT_THROWN(torch.beginAllocateToPool(0, first, always), "beginAllocateToPool: already recording to mempool_id");
  auto const also_in_first = torch.allocate(mib);
  auto* const in_second = torch.raw_alloc_with_stream(mib, other.stream());
  torch.endAllocateToPool(0, first); // not the last that began
  auto const outside = torch.allocate(mib);
  torch.endAllocateToPool(0, second);
  for (auto const* const each : {&in_first, &also_in_first}) EXPECT(holds(torch, first, each->get()));
  EXPECT(holds(torch, second, in_second));
  EXPECT(!holds(torch, first, outside.get()) && !holds(torch, second, outside.get()));
  torch.raw_delete(in_second); // outside of begin and end
  EXPECT_EQUAL(torch.getDeviceStats(0).allocation[0].current, 3);
}

void pools_end() {
  auto& torch = installed();
  torch.beginAllocateToPool(0, first, always);
  auto data = torch.allocate(8 * mib);
  torch.emptyCache(); // does nothing before the end
  torch.endAllocateToPool(0, first);
  torch.releasePool(0, first);
  torch.emptyCache();
  EXPECT(holds(torch, first, data.get()));
  data.clear();
  EXPECT(reserved(torch) >= static_cast<std::int64_t>(8 * mib));
  torch.emptyCache(second);
  EXPECT(reserved(torch) >= static_cast<std::int64_t>(8 * mib));
  for (int i = 0; i < 10000 && reserved(torch) > 0; ++i) { // the pool itself may be giving it back just now
    torch.emptyCache();
    std::this_thread::yield();
  }
  EXPECT_EQUAL(reserved(torch), 0);
  EXPECT_THROWN(torch.getPoolUseCount(0, first), "there is no pool 0, 1");
}

// A pool over gpumem's memory may have given it back by then, one over another allocator keeps it.
void pools_lend_at_out_of_memory() {
  auto* const native = torch_cuda::get();
  auto& torch = installed();
  native->init(2);
  torch.setMemoryFraction(0.5, 0);
  torch.createOrIncrefPool(0, first, std::shared_ptr<CUDAAllocator>{native, [](auto*) {}});
  torch.beginAllocateToPool(0, first, always);
  torch.allocate(3 * gib).clear();
  torch.endAllocateToPool(0, first);
  EXPECT_OUT_OF_MEMORY(torch.allocate(2 * gib), "Tried to allocate 2.00 GiB");
  torch.setUseOnOOM(0, first, true);
  EXPECT(torch.allocate(2 * gib).get() != nullptr);
  torch.setUseOnOOM(0, first, false);
  torch.setUseOnOOM(0, second, false); // there is none; destructors of PyTorch call it
  EXPECT_OUT_OF_MEMORY(torch.allocate(2 * gib), "Tried to allocate 2.00 GiB");
}

// The fraction holds for all memory together: that of the device's pool, and that of other allocators.
void other_allocators_count_toward_the_fraction() {
  auto* const native = torch_cuda::get();
  auto& torch = installed();
  native->init(2);
  torch.setMemoryFraction(0.5, 0);
  std::shared_ptr<CUDAAllocator> const shared{native, [](auto*) {}};
  auto const allocate_in = [&](MempoolId_t pool, std::size_t bytes) {
    torch.beginAllocateToPool(0, pool, always);
    auto data = torch.allocate(bytes);
    torch.endAllocateToPool(0, pool);
    return data;
  };
  for (auto const& pool : {first, second}) torch.createOrIncrefPool(0, pool, shared);
  torch.setUseOnOOM(0, second, true);
  torch.allocate(gib).clear(); // goes back when a pool needs the room
  auto in_first = allocate_in(first, 2 * gib);
  auto in_second = allocate_in(second, 2 * gib);
  EXPECT_EQUAL(reserved(torch), 4 * gib);
  EXPECT_OUT_OF_MEMORY(torch.allocate(2 * gib), "4.00 GiB allowed; ");
  torch.beginAllocateToPool(0, second, always);
  EXPECT_OUT_OF_MEMORY(torch.allocate(3 * gib), "4.00 GiB allowed; ");
  torch.endAllocateToPool(0, second);
  in_first.clear();
  in_second.clear();
  auto data = torch.allocate(gib + gib / 2);
  EXPECT(holds(torch, second, data.get()));
  EXPECT_OUT_OF_MEMORY(torch.allocate(gib + gib / 2), "Tried to allocate 1.50 GiB");
  data.clear();
  in_second = allocate_in(second, gib);
  EXPECT(holds(torch, second, in_second.get()));
  in_second.clear();
  for (int i = 0; i < 2; ++i) torch.releasePool(0, first);
  torch.emptyCache(first);
  data = torch.allocate(gib + gib / 2);
  EXPECT(!holds(torch, second, data.get()));
  EXPECT(reserved(torch) <= static_cast<std::int64_t>(4 * gib));
}

void memory_of_pools_is_told_at_out_of_memory() {
  auto& torch = installed();
  EXPECT_OUT_OF_MEMORY(torch.allocate(9 * gib), "0 bytes is allocated by PyTorch, and 0 bytes is reserved");
  auto const outside = torch.allocate(gib);
  torch.beginAllocateToPool(0, first, always);
  auto const inside = torch.allocate(gib);
  torch.allocate(2 * gib).clear();
  torch.endAllocateToPool(0, first);
  EXPECT_OUT_OF_MEMORY(
      torch.allocate(6 * gib),
      "Of the allocated memory 4.00 GiB is allocated by PyTorch, with 2.00 GiB allocated in private pools "
      "(e.g., CUDA Graphs), and ");
}

// The memory of a graph stays the graph's until its pool ends.
void captures() {
  auto& torch = installed();
  auto const stream = new_stream();
  c10::cuda::setCurrentCUDAStream(stream);
  torch.beginAllocateToPool(0, {3, 0}, [&](cudaStream_t one) {
    auto status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(one, &status) == cudaSuccess && status == cudaStreamCaptureStatusActive;
  });
  auto const before = torch.allocate(mib);
  simulated_begin_capture(stream.stream());
  auto captured = torch.allocate(4 * mib);
  auto* const pointer = captured.get();
  torch.recordStream(captured, new_stream());
  captured.clear();
  auto again = torch.allocate(4 * mib);
  EXPECT(holds(torch, {3, 0}, pointer));
  EXPECT(holds(torch, {3, 0}, again.get()));
  simulated_end_capture(stream.stream());
  torch.endAllocateToPool(0, {3, 0});
  EXPECT(!holds(torch, {3, 0}, before.get()));
  again.clear();
  auto const later = torch.allocate(4 * mib);
  EXPECT(!holds(torch, {3, 0}, later.get()));
  torch.emptyCache();
  EXPECT(holds(torch, {3, 0}, pointer));
  torch.releasePool(0, {3, 0});
  torch.emptyCache();
  EXPECT(!holds(torch, {3, 0}, pointer));
}

// A second allocator of PyTorch: its own one.
void own_allocators() {
  auto* const native = torch_cuda::get();
  auto& torch = installed();
  native->init(2);
  auto const live = [&] { return native->getDeviceStats(0).allocated_bytes[0].current; };
  std::shared_ptr<CUDAAllocator> const shared{native, [](auto*) {}};
  torch.createOrIncrefPool(0, first, shared);
  torch.beginAllocateToPool(0, first, always);
  auto data = torch.allocate(3 * mib);
  torch.endAllocateToPool(0, first);
  EXPECT(live() >= static_cast<std::int64_t>(3 * mib));
  EXPECT(holds(torch, first, data.get()));
  EXPECT_EQUAL(reserved(torch), live());
  data.clear();
  for (int i = 0; i < 2; ++i) torch.releasePool(0, first);
  torch.emptyCache(first);
  EXPECT_EQUAL(live(), 0);

  torch.createOrIncrefPool(0, second, shared);
  torch.setNoSplit(0, second);
  torch.beginAllocateToPool(0, second, always);
  data = torch.allocate(100);
  EXPECT_EQUAL(native->getDeviceStats(0).allocation[0].current, 1);
  auto const another = torch.allocate(100);
  EXPECT_EQUAL(native->getDeviceStats(0).allocation[0].current, 2);
  torch.endAllocateToPool(0, second);
  EXPECT_THROWN(torch.setNoSplit(0, first), "there is no pool 0, 1");
}

void peers() {
  auto& torch = installed();
  torch.enablePeerAccess(0, 1);
  torch.enablePeerAccess(0, 1);
  EXPECT(cudaGetLastError() == cudaSuccess);
  EXPECT_EQUAL(c10::cuda::current_device(), 0);
  EXPECT_THROWN(torch.enablePeerAccess(0, 0), "CUDA error");
  char text[8] = "content";
  char back[8] = "";
  auto const here = torch.allocate(sizeof text);
  auto const near = torch.allocate(sizeof text);
  auto const there = [&] {
    c10::cuda::CUDAGuard const guard{1};
    return torch.allocate(sizeof text);
  }();
  EXPECT(cudaMemcpy(here.get(), text, sizeof text, cudaMemcpyHostToDevice) == cudaSuccess);
  EXPECT(torch.memcpyAsync(near.get(), 0, here.get(), 0, sizeof text, nullptr, false) == cudaSuccess);
  EXPECT(torch.memcpyAsync(there.get(), 1, near.get(), 0, sizeof text, nullptr, true) == cudaSuccess);
  EXPECT(cudaDeviceSynchronize() == cudaSuccess);
  EXPECT(cudaMemcpy(back, there.get(), sizeof back, cudaMemcpyDeviceToHost) == cudaSuccess);
  EXPECT(std::strcmp(back, text) == 0);
}

void checkpoints() {
  auto& torch = installed();
  EXPECT_THROWN(torch.getCheckpointState(0, first), "Could not find pool of id");
  EXPECT_THROWN(torch.setCheckpointPoolState(0, nullptr), "Expected PrivatePoolState");
  EXPECT_THROWN(torch.checkPoolLiveAllocations(0, first, {}), "Could not find pool of id");
  torch.createOrIncrefPool(0, first);
  EXPECT(torch.checkPoolLiveAllocations(0, first, {}));
  EXPECT(torch.getCheckpointState(0, first) != nullptr);
  torch.releasePool(0, first);
  EXPECT_THROWN(torch.getCheckpointState(0, first), "Not expected to checkpoint freeable graph");
}

void memory_of_other_processes() {
  auto& torch = installed();
  auto const data = torch.allocate(mib);
  auto const shared = torch.shareIpcHandle(data.get());
  for (std::string const wrong : {"handle", "", "g", "\2x", "\2cshort"})
    EXPECT_THROWN(torch.getIpcDevPtr(wrong), "unexpected or illformed shareable handle type");
  EXPECT_THROWN(torch.getIpcDevPtr(shared.handle.substr(0, 2) + "1:/nowhere"), "cannot be reached");
  auto opened = torch.getIpcDevPtr(shared.handle);
  EXPECT(torch.getIpcDevPtr(shared.handle) == opened); // one mapping for all tensors in the same memory
  auto* const there = static_cast<char*>(opened.get()) + shared.offset;
  EXPECT(there != data.get());
  std::memset(data.get(), 5, mib);
  EXPECT(there[0] == 5 && there[mib - 1] == 5);
  auto const* const before = opened.get();
  opened.reset();
  EXPECT(torch.getIpcDevPtr(shared.handle).get() == before); // the addresses were free again
  std::size_t bytes = 0;
  auto const base = static_cast<char*>(torch.getBaseAllocation(data.get(), &bytes));
  EXPECT(base <= data.get() && static_cast<char*>(data.get()) + mib <= base + bytes);
  EXPECT_THROWN(torch.getBaseAllocation(&bytes, nullptr), "invalid device pointer");
}

constexpr test tests[] = {
    {"counts_uses", counts_uses},
    {"nested_pools", nested_pools},
    {"pools_end", pools_end},
    {"pools_lend_at_out_of_memory", pools_lend_at_out_of_memory},
    {"other_allocators_count_toward_the_fraction", other_allocators_count_toward_the_fraction},
    {"memory_of_pools_is_told_at_out_of_memory", memory_of_pools_is_told_at_out_of_memory},
    {"captures", captures},
    {"own_allocators", own_allocators},
    {"peers", peers},
    {"checkpoints", checkpoints},
    {"memory_of_other_processes", memory_of_other_processes},
};

} // namespace

int main(int count, char** arguments) { return run_test(tests, count, arguments); }
