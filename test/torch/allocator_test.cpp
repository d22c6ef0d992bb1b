// gpumem as PyTorch's allocator: allocation, free, and the state of the allocator.
// SPDX-License-Identifier: Apache-2.0
#include "checks.hpp"

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <thread>

namespace {

void installs_once() {
  auto* const native = torch_cuda::get();
  EXPECT(native->name() != "gpumem");
  EXPECT(install() == nullptr);
  auto& torch = *torch_cuda::get();
  EXPECT(&torch != native && torch.name() == "gpumem");
  EXPECT(c10::GetAllocator(c10::kCUDA) == &torch);
  EXPECT(c10::getDeviceAllocator(c10::kCUDA) == &torch);
  EXPECT(!torch.initialized());
  EXPECT(install() == nullptr);
  EXPECT(torch_cuda::get() == &torch);
  torch.init(2);
  torch.init(1);
  EXPECT(torch.initialized());
  EXPECT_EQUAL(torch.getDeviceStats(1).allocation[0].current, 0);
  EXPECT_THROWN(torch.getDeviceStats(2), "did you call init?");
  EXPECT_THROWN(torch.init(65), "gpumem serves at most 64 devices");
  EXPECT(install() == nullptr); // PyTorch has used it, but it is gpumem
  auto* const built_for = reinterpret_cast<char const* (*)()>(dlsym(library, "gpumem_torch_built_for"));
  EXPECT(std::strcmp(built_for(), TORCH_VERSION) == 0);
}

void installs_before_the_first_use() {
  auto* const native = torch_cuda::get();
  native->init(1);
  auto const* const text = install();
  EXPECT(text && std::strstr(text, "PyTorch has used CUDA already: install gpumem before its first use of a GPU"));
  EXPECT(torch_cuda::get() == native);
}

void allocates_and_frees() {
  auto& torch = installed();
  {
    auto const data = torch.allocate(mib);
    EXPECT(data.get() != nullptr && data.get_context() == data.get());
    EXPECT(data.device() == c10::Device(c10::kCUDA, 0));
    EXPECT(data.get_deleter() == torch.raw_deleter());
    EXPECT(torch.is_simple_data_ptr(data));
    c10::cuda::CUDAGuard const guard{1};
    auto const elsewhere = torch.allocate(mib);
    EXPECT(elsewhere.device() == c10::Device(c10::kCUDA, 1));
    EXPECT_EQUAL(torch.getDeviceStats(1).allocation[0].current, 1);
  }
  auto* const first = torch.raw_alloc(100);
  auto* const second = torch.raw_alloc_with_stream(100, new_stream().stream());
  EXPECT(first && second && first != second);
  EXPECT_EQUAL(torch.getDeviceStats(0).allocation[0].current, 2);
  torch.raw_delete(first);
  torch.raw_deleter()(second);
  EXPECT_EQUAL(torch.getDeviceStats(0).allocation[0].current, 0);
  EXPECT_EQUAL(torch.getDeviceStats(1).allocation[0].current, 0);
}

void copies() {
  auto& torch = installed();
  std::array<char, 8> text{"content"};
  std::array<char, 8> back{};
  auto const from = torch.allocate(text.size());
  auto const to = torch.allocate(text.size());
  EXPECT(cudaMemcpy(from.get(), text.data(), text.size(), cudaMemcpyHostToDevice) == cudaSuccess);
  torch.copy_data(to.get(), from.get(), text.size());
  EXPECT(cudaMemcpy(back.data(), to.get(), text.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
  EXPECT(back == text);
}

void no_bytes() {
  auto& torch = installed();
  auto const data = torch.allocate(0);
  EXPECT(data.get() == nullptr && data.device() == c10::Device(c10::kCUDA, 0));
  EXPECT(torch.raw_alloc(0) == nullptr);
  EXPECT(torch.raw_alloc_with_stream(0, nullptr) == nullptr);
  torch.raw_delete(nullptr);
  EXPECT_EQUAL(torch.getDeviceStats(0).allocation[0].allocated, 0);
}

void sizes_beyond_memory() {
  auto& torch = installed();
  constexpr auto exabyte = std::size_t{1} << 60;
  EXPECT_OUT_OF_MEMORY(torch.allocate(exabyte), "CUDA out of memory. Tried to allocate more than 1EB memory.");
  EXPECT_OUT_OF_MEMORY(torch.allocate(std::numeric_limits<std::size_t>::max()), "more than 1EB");
  EXPECT_OUT_OF_MEMORY(torch.allocate(exabyte - 1), "Tried to allocate 1073741824.00 GiB. GPU 0 has");
  EXPECT_OUT_OF_MEMORY(torch.raw_alloc(std::numeric_limits<std::size_t>::max()),
                       "Tried to allocate 17179869184.00 GiB");
  EXPECT_EQUAL(torch.getDeviceStats(0).allocation[0].allocated, 0);
  EXPECT(torch.allocate(mib).get() != nullptr);
}

void wrong_pointers() {
  auto& torch = installed();
  auto* const block = torch.raw_alloc(mib);
  int own = 0;
  EXPECT_THROWN(torch.raw_delete(&own), "invalid device pointer: ");
  EXPECT_THROWN(torch.raw_delete(static_cast<char*>(block) + 512), "invalid device pointer: ");
  torch.raw_delete(block);
  EXPECT_THROWN(torch.raw_delete(block), "invalid device pointer: ");
  EXPECT_EQUAL(torch.getDeviceStats(0).allocation[0].freed, 1);
}

// Uses the memory of one stream on another, frees it before that use has run, and allocates all memory again.
void recorded_streams_come_first() {
  auto& torch = installed();
  torch.setMemoryFraction(0.5, 0);
  auto const main = new_stream();
  auto const side = new_stream();
  c10::cuda::setCurrentCUDAStream(main);
  auto data = torch.allocate(4 * gib);
  simulated_allocated(main.stream(), data.get(), 4 * gib);
  torch.recordStream(data, side);
  torch.recordStream(data, side.unwrap());
  torch.recordStream(data, main);
  simulated_order(main.stream(), side.stream());
  simulated_write(side.stream(), data.get(), 4 * gib);
  simulated_use_recorded(side.stream(), data.get());
  simulated_freed(main.stream(), data.get(), 4 * gib);
  data.clear();
  auto const again = torch.allocate(4 * gib);
  simulated_allocated(main.stream(), again.get(), 4 * gib);
  simulated_write(main.stream(), again.get(), 4 * gib);
  EXPECT_EQUAL(torch.getDeviceStats(0).num_ooms, 0);
}

// Memory that was freed on a stream from outside goes back although no call comes that has the stream.
void external_streams_end_quietly() {
  auto& torch = installed_on_running_device();
  auto const stream = new_stream();
  c10::cuda::setCurrentCUDAStream(stream);
  auto data = torch.allocate(64 * mib);
  simulated_allocated(stream.stream(), data.get(), 64 * mib);
  simulated_write(stream.stream(), data.get(), 64 * mib);
  simulated_freed(stream.stream(), data.get(), 64 * mib);
  c10::cuda::setCurrentCUDAStream(c10::cuda::getDefaultCUDAStream(0));
  data.clear();
  torch.emptyCache();
  EXPECT_EQUAL(reserved(torch), 0);
}

// Counts the driver's answers about streams during the work: which stream a handle is, and whether it captures.
struct answers {
  unsigned long long ids = 0, captures = 0;
  template <class Work> explicit answers(Work work) {
    auto const before = std::array{simulated_calls("cuStreamGetId"), simulated_calls("cuStreamIsCapturing")};
    work();
    ids = simulated_calls("cuStreamGetId") - before[0];
    captures = simulated_calls("cuStreamIsCapturing") - before[1];
  }
};

// PyTorch's streams are never destroyed. Small blocks come from the thread's cache, large ones from a shard.
void streams_of_pytorch_are_not_identified() {
  auto& torch = installed();
  auto const mine = c10::cuda::getStreamFromPool(false, 0);
  c10::cuda::setCurrentCUDAStream(mine);
  torch.raw_delete(torch.raw_alloc_with_stream(64 * mib, mine.stream())); // the first call asks
  auto const pair = [&](std::size_t bytes) {
    return [&torch, bytes, &mine] {
      torch.raw_delete(torch.raw_alloc(bytes));
      torch.raw_delete(torch.raw_alloc_with_stream(bytes, mine.stream()));
    };
  };
  pair(512)();
  answers const small{pair(512)}, large{pair(16 * mib)};
  EXPECT_EQUAL(small.ids + small.captures, 0);
  EXPECT_EQUAL(large.ids, 0);
  EXPECT_EQUAL(large.captures, 2); // of the allocations
  c10::cuda::setCurrentCUDAStream(c10::cuda::getDefaultCUDAStream(0));
  pair(512)();
  answers const elsewhere{pair(512)};
  EXPECT_EQUAL(elsewhere.ids + elsewhere.captures, 0);
}

void recorded_streams_of_pytorch_are_not_identified() {
  auto& torch = installed();
  auto const side = c10::cuda::getStreamFromPool(false, 0);
  auto const use = [&] { torch.recordStream(torch.allocate(mib), side); }; // then frees the block
  use();
  use();
  answers const again{use};
  EXPECT_EQUAL(again.ids, 0);
  EXPECT(again.captures > 0);
}

// An external stream may have been destroyed, and its handle may be another stream's. So the driver is asked.
void external_streams_are_identified() {
  auto& torch = installed();
  auto const stream = new_stream();
  c10::cuda::setCurrentCUDAStream(stream);
  auto const pair = [&] { torch.raw_delete(torch.raw_alloc(512)); };
  pair();
  answers const again{pair}, recorded{[&] { torch.recordStream(torch.allocate(512), new_stream()); }};
  EXPECT_EQUAL(again.ids, 2);
  EXPECT(again.captures >= 2);
  EXPECT(recorded.ids > 2);
}

void foreign_memory_is_not_recorded() {
  auto& torch = installed();
  int own = 0;
  torch.recordStream(c10::DataPtr{}, new_stream());
  torch.recordStream(c10::DataPtr{&own, &own, [](void*) {}, c10::Device(c10::kCUDA, 0)}, new_stream());
  EXPECT_EQUAL(torch.getDeviceStats(0).allocation[0].allocated, 0);
}

void empties_the_cache() {
  auto& torch = installed();
  auto const held = torch.allocate(mib);
  torch.allocate(64 * mib).clear();
  auto const before = reserved(torch);
  EXPECT(before >= static_cast<std::int64_t>(65 * mib));
  torch.emptyCache({0, 7}); // there is no such pool
  EXPECT_EQUAL(reserved(torch), before);
  torch.emptyCache();
  EXPECT(reserved(torch) >= static_cast<std::int64_t>(mib) && reserved(torch) < static_cast<std::int64_t>(64 * mib));
  EXPECT_EQUAL(reserved(torch), simulated_device_bytes());
  EXPECT_EQUAL(torch.getDeviceStats(0).reserved_bytes[0].peak, before);
  EXPECT(torch.getDeviceStats(0).num_device_free > 0);
}

void uncached() {
  auto& torch = installed();
  auto cached = torch.allocate(mib);
  auto* const deleter = torch.raw_deleter();
  torch.emptyCache();
  auto const before = simulated_device_bytes();
  torch.enable(false);
  EXPECT(!torch.isEnabled());
  EXPECT(torch.raw_deleter() != deleter);
  {
    auto const data = torch.allocate(100);
    EXPECT(data.get() != nullptr && data.get_deleter() == torch.raw_deleter());
    EXPECT(data.device() == c10::Device(c10::kCUDA, 0));
    EXPECT(simulated_device_bytes() > before);
    auto* const raw = torch.raw_alloc(100);
    EXPECT(raw != nullptr && torch.raw_alloc(0) == nullptr);
    torch.raw_delete(raw);
    torch.recordStream(data, new_stream());
  }
  EXPECT_EQUAL(simulated_device_bytes(), before);
  EXPECT_EQUAL(torch.getDeviceStats(0).allocation[0].allocated, 1);
  auto uncached = torch.allocate(100);
  cached.clear(); // its deleter is that of cached memory
  EXPECT_EQUAL(torch.getDeviceStats(0).allocation[0].current, 0);
  torch.enable(true);
  uncached.clear();
  EXPECT_EQUAL(simulated_device_bytes(), before);
  EXPECT(torch.raw_deleter() == deleter);
  torch.emptyCache();
  EXPECT_EQUAL(simulated_device_bytes(), 0);
}

void uncached_by_the_environment() {
  setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", 1);
  auto& torch = installed();
  EXPECT(!torch.isEnabled());
  torch.allocate(mib).clear();
  EXPECT_EQUAL(simulated_device_bytes(), 0);
}

constexpr test tests[] = {
    {"installs_once", installs_once},
    {"installs_before_the_first_use", installs_before_the_first_use},
    {"allocates_and_frees", allocates_and_frees},
    {"copies", copies},
    {"no_bytes", no_bytes},
    {"sizes_beyond_memory", sizes_beyond_memory},
    {"wrong_pointers", wrong_pointers},
    {"recorded_streams_come_first", recorded_streams_come_first},
    {"external_streams_end_quietly", external_streams_end_quietly},
    {"streams_of_pytorch_are_not_identified", streams_of_pytorch_are_not_identified},
    {"recorded_streams_of_pytorch_are_not_identified", recorded_streams_of_pytorch_are_not_identified},
    {"external_streams_are_identified", external_streams_are_identified},
    {"foreign_memory_is_not_recorded", foreign_memory_is_not_recorded},
    {"empties_the_cache", empties_the_cache},
    {"uncached", uncached},
    {"uncached_by_the_environment", uncached_by_the_environment},
};

} // namespace

int main(int count, char** arguments) { return run_test(tests, count, arguments); }
