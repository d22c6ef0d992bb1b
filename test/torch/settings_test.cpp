// gpumem as PyTorch's allocator: PyTorch's settings.
// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"

#include <c10/core/AllocatorConfig.h>

#include <cstdint>

namespace {

using c10::CachingAllocator::setAllocatorSettings;

/// Returns the bytes that the figures show for a request.
std::int64_t counted(CUDAAllocator& torch, std::size_t bytes) {
  auto const data = torch.allocate(bytes);
  auto const now = torch.getDeviceStats(0);
  EXPECT_EQUAL(now.requested_bytes[0].current, bytes);
  EXPECT_EQUAL(now.active_bytes[0].current, now.allocated_bytes[0].current);
  return now.allocated_bytes[0].current;
}

void one_number_of_divisions() {
  auto& torch = installed();
  EXPECT_EQUAL(counted(torch, 5000), 5120);
  setAllocatorSettings("roundup_power2_divisions:4");
  EXPECT_EQUAL(counted(torch, 100), 512);
  EXPECT_EQUAL(counted(torch, 1100), 1536); // a quarter of 1024 is less than 512
  EXPECT_EQUAL(counted(torch, 2048), 2048);
  EXPECT_EQUAL(counted(torch, 2049), 2560);
  EXPECT_EQUAL(counted(torch, 4100), 5120);
  EXPECT_EQUAL(counted(torch, 8000), 8192);
  EXPECT_EQUAL(counted(torch, 64 * mib), 64 * mib);
  EXPECT_EQUAL(counted(torch, 64 * mib + 1), 80 * mib);
  EXPECT_EQUAL(counted(torch, 84 * mib), 96 * mib);
  EXPECT_EQUAL(counted(torch, gib + 1), gib + gib / 4);
  auto const data = torch.allocate(84 * mib);
  setAllocatorSettings("");
  EXPECT_EQUAL(torch.getDeviceStats(0).allocated_bytes[0].current, 96 * mib);
}

void divisions_by_size() {
  auto& torch = installed();
  setAllocatorSettings("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]");
  EXPECT_EQUAL(counted(torch, 84 * mib), 84 * mib);
  EXPECT_EQUAL(counted(torch, 300 * mib), 300 * mib);
  EXPECT_EQUAL(counted(torch, 600 * mib), 768 * mib);
  EXPECT_EQUAL(counted(torch, 1100 * mib), 1280 * mib);
  EXPECT_EQUAL(counted(torch, 2050 * mib), 2304 * mib);
  setAllocatorSettings("max_split_size_mb:64,garbage_collection_threshold:0.5");
  EXPECT_EQUAL(counted(torch, 600 * mib), 600 * mib);
}

void room_is_memory() {
  auto& torch = installed();
  setAllocatorSettings("roundup_power2_divisions:1");
  EXPECT_EQUAL(counted(torch, 5 * gib), 5 * gib);
  setAllocatorSettings("roundup_power2_divisions:2");
  EXPECT_EQUAL(counted(torch, 5 * gib), 6 * gib);
  {
    auto const held = torch.allocate(mib);
    EXPECT_OUT_OF_MEMORY(torch.allocate(6 * gib + mib), "Tried to allocate 8.00 GiB. GPU 0 has");
  }
  EXPECT_OUT_OF_MEMORY(torch.raw_alloc(~std::size_t{0}), "Tried to allocate 17179869184.00 GiB");
  torch.beginAllocateToPool(0, {0, 1}, [](cudaStream_t) { return true; });
  EXPECT_EQUAL(counted(torch, 5 * mib), 6 * mib);
  auto const data = torch.allocate(5 * mib);
  torch.endAllocateToPool(0, {0, 1});
  auto const shown = torch.snapshot({0, 1}, false);
  EXPECT_EQUAL(shown.segments.size(), 1);
  EXPECT_EQUAL(shown.segments.at(0).requested_size, 5 * mib);
  EXPECT_EQUAL(shown.segments.at(0).allocated_size, 6 * mib);
  EXPECT_EQUAL(shown.config_metadata.roundup_power2_divisions.at(0), 2);
  EXPECT(shown.config_metadata.last_allocator_settings == "backend:gpumem,roundup_power2_divisions:2");
}

void settings_of_the_environment() {
  setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:native,roundup_power2_divisions:2,per_process_memory_fraction:0.5", 1);
  auto& torch = installed();
  EXPECT(torch.getMemoryFraction(0) == 0.5 && torch.getMemoryFraction(1) == 0.5);
  EXPECT_EQUAL(counted(torch, 5 * mib), 6 * mib);
  EXPECT_OUT_OF_MEMORY(torch.allocate(5 * gib), "4.00 GiB allowed; ");
}

void shorter_name_of_the_environment() {
  setenv("PYTORCH_ALLOC_CONF", "roundup_power2_divisions:2", 1);
  EXPECT_EQUAL(counted(installed(), 5 * mib), 6 * mib);
}

/// Returns whether gpumem is refused with the sentence for these settings of the environment.
bool refused(char const* settings, char const* sentence) {
  setenv("PYTORCH_CUDA_ALLOC_CONF", settings, 1);
  auto* const native = torch_cuda::get();
  auto const* const text = install();
  bool const as_wanted = text && std::strstr(text, sentence);
  if (!as_wanted) std::fprintf(stderr, "%s\n", text ? text : "nothing was refused");
  return as_wanted && torch_cuda::get() == native;
}

void unknown_settings() { EXPECT(refused("roundup:2", "Unrecognized key 'roundup' in ")); }
void wrong_values() { EXPECT(refused("roundup_power2_divisions:3", "the divisions has to be power of 2")); }

constexpr test tests[] = {
    {"one_number_of_divisions", one_number_of_divisions},
    {"divisions_by_size", divisions_by_size},
    {"room_is_memory", room_is_memory},
    {"settings_of_the_environment", settings_of_the_environment},
    {"shorter_name_of_the_environment", shorter_name_of_the_environment},
    {"unknown_settings", unknown_settings},
    {"wrong_values", wrong_values},
};

} // namespace

int main(int count, char** arguments) { return run_test(tests, count, arguments); }
