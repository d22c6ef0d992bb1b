// Without host memory, correct frees succeed and requests fail.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/pool_options.hpp>

#include <cstdlib>
#include <new>
#include <vector>

#include <cuda.h>

import gpumem;

// The address range of this program's code: only its calls fail. The simulated device, a library, always gets memory.
extern "C" char const __executable_start;
extern "C" char const etext;

namespace {
thread_local bool no_memory = false;
bool refused(void const* caller) noexcept {
  auto const* const at = static_cast<char const*>(caller);
  return no_memory && at >= &__executable_start && at < &etext;
}
} // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (!refused(__builtin_return_address(0))) {
    if (void* const p = std::malloc(bytes ? bytes : 1)) return p;
  }
  throw std::bad_alloc{};
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace {

using gpumem::outcome;
using gpumem::pool_resource;
using gpumem::stream_ref;
namespace simulator = gpumem::simulator;
constexpr std::size_t MiB = std::size_t{1} << 20;

stream_ref make_foreign() {
  CUstream made = nullptr;
  gpumem::driver_api::check(gpumem::driver_api::driver().stream_create(&made, CU_STREAM_NON_BLOCKING),
                            "cuStreamCreate");
  return stream_ref{made};
}

class host_memory_shortage : public gpumem_test::simulated_test {
protected:
  static inline int told = 0;
  void SetUp() override {
    told = 0;
    before_ = gpumem::set_misuse_handler([](gpumem::misuse const&) noexcept { ++told; });
  }
  void TearDown() override {
    gpumem::set_misuse_handler(before_);
    simulated_test::TearDown();
  }
  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device};

private:
  gpumem::misuse_handler before_ = nullptr;
};

// More new streams than the library keeps timelines in reserve.
TEST_F(host_memory_shortage, free_on_an_unknown_stream_needs_no_host_memory) {
  pool_resource pool{device};
  simulator::checked checked{pool};
  constexpr std::size_t many = 8;
  std::vector<void*> blocks;
  std::vector<stream_ref> streams;
  for (std::size_t i = 0; i < many; ++i) {
    blocks.push_back(checked.allocate(a, 8 * MiB));
    streams.push_back(make_foreign());
    gpumem::driver_api::driver().memset_d8_async(reinterpret_cast<CUdeviceptr>(blocks[i]), 0, 8 * MiB, a.get());
  }
  a.synchronize();
  for (std::size_t i = 0; i < many; ++i) simulator::work(streams[i], {simulator::write(blocks[i], 8 * MiB)});
  no_memory = true;
  for (std::size_t i = 0; i < many; ++i) pool.deallocate(streams[i], blocks[i], 8 * MiB);
  no_memory = false;
  EXPECT_EQ(told, 0);
  EXPECT_EQ(pool.statistics().live, 0u);
  for (auto const s : streams) {
    gpumem::driver_api::driver().stream_synchronize(s.get());
    gpumem::driver_api::driver().stream_destroy(s.get());
  }
  auto const reserved = pool.statistics().reserved;
  for (std::size_t i = 0; i < many; ++i) EXPECT_TRUE(pool.try_allocate(a, 8 * MiB));
  EXPECT_EQ(pool.statistics().reserved, reserved) << "all memory can be reused";
}

TEST_F(host_memory_shortage, free_on_a_capturing_stream_needs_no_host_memory) {
  pool_resource pool{device};
  std::vector<void*> blocks;
  std::vector<stream_ref> streams;
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(pool.allocate(a, MiB));
    streams.push_back(make_foreign());
    auto const mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    gpumem::driver_api::check(gpumem::driver_api::driver().stream_begin_capture(streams.back().get(), mode),
                              "cuStreamBeginCapture");
  }
  no_memory = true;
  for (std::size_t i = 0; i < 4; ++i) pool.deallocate(streams[i], blocks[i], MiB);
  no_memory = false;
  EXPECT_EQ(told, 0);
  for (auto const s : streams) {
    CUgraph graph = nullptr;
    EXPECT_EQ(gpumem::driver_api::driver().stream_end_capture(s.get(), &graph), CUDA_SUCCESS);
    gpumem::driver_api::driver().graph_destroy(graph);
    gpumem::driver_api::driver().stream_destroy(s.get());
  }
  EXPECT_EQ(pool.statistics().live, 0u);
}

// Their order in the graph is not known, so that they serve only the stream that frees them.
TEST_F(host_memory_shortage, free_of_graph_memory_without_host_memory_leaves_it_to_its_stream) {
  gpumem::graph_resource memory{pool_resource{device}};
  gpumem::stream b{device};
  auto const& cu = gpumem::driver_api::driver();
  gpumem::driver_api::check(cu.stream_begin_capture(a.get(), CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
  auto* const p = memory.allocate(a, 3 * MiB);
  simulator::work(a, {simulator::write(p, 3 * MiB)});
  no_memory = true;
  memory.deallocate(a, p, 3 * MiB);
  no_memory = false;
  EXPECT_EQ(told, 0);
  CUevent between = nullptr;
  gpumem::driver_api::check(cu.event_create(&between, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  cu.event_record(between, a.get());
  cu.stream_wait_event(b.get(), between, 0);
  auto* const other = memory.allocate(b, 3 * MiB);
  EXPECT_NE(other, p);
  EXPECT_EQ(memory.allocate(a, 3 * MiB), p);
  cu.event_record(between, b.get());
  cu.stream_wait_event(a.get(), between, 0);
  cu.event_destroy(between);
  CUgraph graph = nullptr;
  EXPECT_EQ(cu.stream_end_capture(a.get(), &graph), CUDA_SUCCESS);
  cu.graph_destroy(graph);
  memory.deallocate(a, p, 3 * MiB);
  memory.deallocate(b, other, 3 * MiB);
}

// The text of a driver error needs host memory too.
TEST_F(host_memory_shortage, driver_error_without_host_memory_fails_the_request_only) {
  pool_resource pool{device};
  for (auto const* const call : {"cuStreamGetId", "cuStreamGetCtx", "cuStreamIsCapturing"}) {
    auto const s = make_foreign();
    simulator::fail_call(call, 1, CUDA_ERROR_INVALID_VALUE);
    no_memory = true;
    auto const got = pool.try_allocate(s, 64 * MiB);
    no_memory = false;
    EXPECT_FALSE(got) << call;
    auto const again = pool.try_allocate(s, 64 * MiB);
    ASSERT_TRUE(again) << call;
    pool.deallocate(s, *again, 64 * MiB);
    gpumem::driver_api::driver().stream_destroy(s.get());
  }
}

TEST_F(host_memory_shortage, request_without_host_memory_is_exhausted) {
  pool_resource pool{device};
  no_memory = true;
  auto const got = pool.try_allocate(a, MiB);
  no_memory = false;
  if (!got) EXPECT_EQ(got.error().reason, outcome::exhausted);
  EXPECT_TRUE(pool.try_allocate(a, MiB));
}

} // namespace
