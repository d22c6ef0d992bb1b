// gpumem as PyTorch's allocator: statistics, out of memory, and the profiler.
// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"

#include <c10/util/ThreadLocalDebugInfo.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace {

using figures = std::vector<std::int64_t>;

void statistics() {
  auto& torch = installed();
  auto small = torch.allocate(100);
  auto at_border = torch.allocate(mib);
  auto large = torch.allocate(mib + 1);
  auto now = torch.getDeviceStats(0);
  EXPECT(current(now.allocation) == (figures{3, 2, 1}));
  EXPECT(current(now.active) == (figures{3, 2, 1}));
  EXPECT(current(now.requested_bytes) == (figures{2 * mib + 101, mib + 100, mib + 1}));
  EXPECT(current(now.allocated_bytes) == (figures{2 * mib + 1024, mib + 512, mib + 512}));
  EXPECT(current(now.active_bytes) == current(now.allocated_bytes));
  auto const bytes = static_cast<std::int64_t>(simulated_device_bytes());
  EXPECT(current(now.reserved_bytes) == (figures{bytes, 0, bytes}));
  EXPECT(now.segment[0].current > 0 && now.segment[0].current == now.num_device_alloc);
  EXPECT_EQUAL(now.num_device_free, 0);
  EXPECT(now.inactive_split[0].current >= 1);
  EXPECT(now.inactive_split_bytes[0].current <= bytes - now.requested_bytes[0].current);
  EXPECT(now.inactive_split_bytes[0].current >= bytes - now.allocated_bytes[0].current);
  EXPECT_EQUAL(now.max_split_size, -1);
  EXPECT_EQUAL(now.num_ooms + now.num_alloc_retries, 0);

  large.clear();
  small.clear();
  now = torch.getDeviceStats(0);
  EXPECT(current(now.allocation) == (figures{1, 1, 0}));
  EXPECT(peaks(now.allocation) == (figures{3, 2, 1}));
  EXPECT(current(now.requested_bytes) == (figures{mib, mib, 0}));
  EXPECT(peaks(now.allocated_bytes) == (figures{2 * mib + 1024, mib + 512, mib + 512}));
  EXPECT_EQUAL(now.allocation[0].allocated, 3);
  EXPECT_EQUAL(now.allocation[0].freed, 2);
  EXPECT_EQUAL(now.allocated_bytes[2].freed, mib + 512);

  torch.resetPeakStats(0);
  now = torch.getDeviceStats(0);
  EXPECT(peaks(now.allocation) == (figures{1, 1, 0}));
  EXPECT(peaks(now.allocated_bytes) == (figures{mib, mib, 0}));
  EXPECT_EQUAL(now.reserved_bytes[0].peak, now.reserved_bytes[0].current);
  EXPECT_EQUAL(now.allocation[0].allocated, 3);

  torch.resetAccumulatedStats(0);
  now = torch.getDeviceStats(0);
  for (auto const* const figure : {&now.allocation, &now.allocated_bytes, &now.requested_bytes, &now.reserved_bytes})
    EXPECT_EQUAL((*figure)[0].allocated + (*figure)[0].freed, 0);
  EXPECT_EQUAL(now.num_device_alloc, 0);
  EXPECT(current(now.allocation) == (figures{1, 1, 0}));

  at_border.clear();
  EXPECT_EQUAL(torch.getDeviceStats(0).allocation[0].freed, 1);
  EXPECT_EQUAL(torch.getDeviceStats(1).allocation[0].allocated, 0);
  EXPECT_THROWN(torch.getDeviceStats(-1), "did you call init?");
  EXPECT_THROWN(torch.resetPeakStats(2), "did you call init?");
  EXPECT_THROWN(torch.resetAccumulatedStats(2), "did you call init?");
}

void statistics_of_threads() {
  auto& torch = installed();
  std::vector<std::thread> threads;
  for (std::size_t number = 0; number < 4; ++number) {
    threads.emplace_back([&torch, number] {
      for (int i = 0; i < 200; ++i) torch.allocate((number + 1) * 1000);
    });
  }
  for (auto& each : threads) each.join();
  auto const now = torch.getDeviceStats(0);
  EXPECT(current(now.allocation) == (figures{0, 0, 0}));
  EXPECT_EQUAL(now.allocation[1].allocated, 800);
  EXPECT_EQUAL(now.requested_bytes[0].freed, 200 * 10 * 1000);
}

void memory_fraction() {
  auto& torch = installed_on_running_device();
  EXPECT(torch.getMemoryFraction(0) == 1);
  EXPECT_THROWN(torch.setMemoryFraction(1.5, 0), "invalid fraction:1.5. Please set within [0, 1].");
  torch.raw_delete(torch.raw_alloc(1));
  torch.setMemoryFraction(0, 0);
  EXPECT_THROWN(torch.raw_alloc(64 << 20), "CUDA out of memory");
  torch.setMemoryFraction(1, 0);
  EXPECT_THROWN(torch.setMemoryFraction(-0.5, 0), "invalid fraction:-0.5. Please set within [0, 1].");
  EXPECT_THROWN(torch.setMemoryFraction(0.5, 2), "Allocator not initialized for device 2: did you call init?");
  EXPECT_THROWN(torch.getMemoryFraction(2), "Allocator not initialized for device 2: did you call init?");
  EXPECT(torch.getMemoryFraction(0) == 1);
  torch.setMemoryFraction(0.25, 0); // before the first allocation
  EXPECT(torch.getMemoryFraction(0) == 0.25 && torch.getMemoryFraction(1) == 1);
  EXPECT_OUT_OF_MEMORY(torch.allocate(2 * gib + mib), "2.00 GiB allowed; ");
  EXPECT(torch.allocate(2 * gib).get() != nullptr);
  torch.setMemoryFraction(0.5, 0); // after it
  EXPECT(torch.allocate(4 * gib).get() != nullptr);
  EXPECT_OUT_OF_MEMORY(torch.allocate(4 * gib + mib), "4.00 GiB allowed; ");
  torch.setMemoryFraction(1, 0);
  EXPECT(torch.allocate(6 * gib).get() != nullptr);
  EXPECT_OUT_OF_MEMORY(torch.allocate(9 * gib), "is free. Of the allocated memory ");
}

void out_of_memory() {
  auto& torch = installed();
  std::vector<std::array<std::int64_t, 4>> observed;
  torch.attachOutOfMemoryObserver([&](std::int64_t device, std::size_t bytes, std::size_t most, std::size_t free) {
    observed.push_back(
        {device, static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(most), static_cast<std::int64_t>(free)});
  });
  auto const held = torch.allocate(6 * gib);
  EXPECT_EQUAL(reserved(torch), 6 * gib);
  EXPECT_OUT_OF_MEMORY(
      torch.allocate(3 * gib - 100),
      "CUDA out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which "
      "2.00 GiB is free. Of the allocated memory 6.00 GiB is allocated by PyTorch, and 0 bytes is "
      "reserved by PyTorch but unallocated. gpumem: out of memory");
  EXPECT_EQUAL(observed.size(), 1);
  EXPECT(observed.at(0) == (std::array<std::int64_t, 4>{0, 3 * gib, 8 * gib, 2 * gib}));
  torch.setMemoryFraction(0.75, 0);
  EXPECT_OUT_OF_MEMORY(torch.allocate(mib), "6.00 GiB allowed; Of the allocated memory 6.00 GiB is");
  EXPECT(observed.at(1) == (std::array<std::int64_t, 4>{0, mib, 6 * gib, 2 * gib}));
  auto const now = torch.getDeviceStats(0);
  EXPECT_EQUAL(now.num_ooms, 2);
  EXPECT_EQUAL(now.num_alloc_retries, 2);
  EXPECT_EQUAL(now.allocation[0].allocated, 1);
  torch.resetAccumulatedStats(0);
  EXPECT_EQUAL(torch.getDeviceStats(0).num_ooms + torch.getDeviceStats(0).num_alloc_retries, 0);
}

struct process_entry {
  unsigned process;
  unsigned long long bytes;
};

// Stands for NVML, on a machine with many processes on device 0.
int list_processes(char const* bus_id, unsigned* count, void* entries) {
  constexpr int insufficient_size = 7;
  int device = -1;
  EXPECT(cudaDeviceGetByPCIBusId(&device, bus_id) == cudaSuccess);
  std::vector<process_entry> listed{{1, 2 * mib}, {static_cast<unsigned>(getpid()), 6 * gib}, {2, ~0ULL}};
  for (unsigned number = 3; number < 20; ++number) listed.push_back({number, 2 * mib});
  if (device != 0) listed.clear();
  auto const room = *count;
  *count = static_cast<unsigned>(listed.size());
  if (room < listed.size()) return insufficient_size;
  std::copy(listed.begin(), listed.end(), static_cast<process_entry*>(entries));
  return 0;
}

void out_of_memory_with_processes() {
  auto* const nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  EXPECT(nvml != nullptr);
  *static_cast<decltype(&list_processes)*>(dlsym(nvml, "answer")) = list_processes;
  auto& torch = installed();
  torch.setMemoryFraction(0.75, 0);
  EXPECT_OUT_OF_MEMORY(torch.allocate(7 * gib),
                       "is free. Process 1 has 2.00 MiB memory in use. Including non-PyTorch memory, this process "
                       "has 6.00 GiB memory in use. Process 3 has 2.00 MiB memory in use. Process 4 has ");
  EXPECT_OUT_OF_MEMORY(torch.allocate(7 * gib), "Process 19 has 2.00 MiB memory in use. 6.00 GiB allowed; ");
  c10::cuda::CUDAGuard const guard{1};
  EXPECT_OUT_OF_MEMORY(torch.allocate(9 * gib), "is free. Of the allocated memory ");
}

struct observer_failure {};

void observers_may_throw() {
  auto& torch = installed();
  torch.attachOutOfMemoryObserver([](auto...) { throw observer_failure{}; });
  bool caught = false;
  try {
    torch.allocate(9 * gib);
  } catch (observer_failure const&) { caught = true; }
  EXPECT(caught);
  EXPECT(torch.allocate(gib).get() != nullptr);
}

c10::DataPtr kept_by_the_callback;
int executions = 0;

struct frees_memory : c10::FreeMemoryCallback {
  bool Execute() override {
    ++executions;
    bool const has = kept_by_the_callback.get() != nullptr;
    kept_by_the_callback.clear();
    return has;
  }
};

void callbacks_free_memory() {
  auto& torch = installed_on_running_device();
  c10::FreeCudaMemoryCallbacksRegistry()->Register(
      "frees_memory", +[]() -> std::unique_ptr<c10::FreeMemoryCallback> { return std::make_unique<frees_memory>(); });
  kept_by_the_callback = torch.allocate(5 * gib);
  EXPECT(torch.allocate(3 * gib).get() != nullptr);
  EXPECT_EQUAL(executions, 0);
  EXPECT(torch.allocate(4 * gib).get() != nullptr);
  EXPECT_EQUAL(executions, 1);
  EXPECT_OUT_OF_MEMORY(torch.allocate(9 * gib), "Tried to allocate 9.00 GiB");
  EXPECT_EQUAL(executions, 2);
  EXPECT_EQUAL(torch.getDeviceStats(0).num_alloc_retries, 2);
  EXPECT_EQUAL(torch.getDeviceStats(0).num_ooms, 1);
}

void largest_free_block() {
  auto& torch = installed();
  std::size_t largest = 0;
  torch.cacheInfo(0, &largest);
  EXPECT_EQUAL(largest, 8 * gib);
  torch.allocate(6 * gib).clear();
  largest = 0;
  torch.cacheInfo(0, &largest);
  EXPECT_EQUAL(largest, 6 * gib);
  largest = 7 * gib;
  torch.cacheInfo(0, &largest);
  EXPECT_EQUAL(largest, 7 * gib);
  EXPECT_THROWN(torch.cacheInfo(2, &largest), "did you call init?");
}

struct profiler : c10::MemoryReportingInfoBase {
  struct report {
    void* pointer;
    std::int64_t bytes;
    std::size_t allocated, reserved;
    int device;
  };
  void reportMemoryUsage(void* pointer, std::int64_t bytes, std::size_t allocated, std::size_t reserved,
                         c10::Device device) override {
    reports.push_back({pointer, bytes, allocated, reserved, device.index()});
  }
  void reportOutOfMemory(std::int64_t bytes, std::size_t allocated, std::size_t reserved, c10::Device device) override {
    failures.push_back({nullptr, bytes, allocated, reserved, device.index()});
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::vector<report> reports, failures;
};

void reports_to_the_profiler() {
  auto& torch = installed_on_running_device();
  auto const before = torch.allocate(mib);
  auto const heard = std::make_shared<profiler>();
  {
    c10::DebugInfoGuard const guard{c10::DebugInfoKind::PROFILER_STATE, heard};
    c10::cuda::CUDAGuard const device{1};
    auto data = torch.allocate(1000);
    auto* const pointer = data.get();
    auto const bytes = static_cast<std::size_t>(reserved(torch, 1));
    data.clear();
    EXPECT_EQUAL(heard->reports.size(), 2);
    for (auto const& report : heard->reports)
      EXPECT(report.pointer == pointer && report.device == 1 && report.reserved == bytes);
    EXPECT(heard->reports.at(0).bytes == 1024 && heard->reports[0].allocated == 1024);
    EXPECT(heard->reports.at(1).bytes == -1024 && heard->reports[1].allocated == 0);
    EXPECT_OUT_OF_MEMORY(torch.allocate(9 * gib), "Tried to allocate 9.00 GiB");
    EXPECT_EQUAL(heard->failures.size(), 1);
    EXPECT(heard->failures.at(0).bytes == 9 * gib && heard->failures[0].device == 1);
    EXPECT_THROWN(torch.raw_delete(pointer), "invalid device pointer: ");
  }
  torch.allocate(mib).clear();
  EXPECT_EQUAL(heard->reports.size(), 2);
}

constexpr test tests[] = {
    {"statistics", statistics},
    {"statistics_of_threads", statistics_of_threads},
    {"memory_fraction", memory_fraction},
    {"out_of_memory", out_of_memory},
    {"out_of_memory_with_processes", out_of_memory_with_processes},
    {"observers_may_throw", observers_may_throw},
    {"callbacks_free_memory", callbacks_free_memory},
    {"largest_free_block", largest_free_block},
    {"reports_to_the_profiler", reports_to_the_profiler},
};

} // namespace

int main(int count, char** arguments) { return run_test(tests, count, arguments); }
