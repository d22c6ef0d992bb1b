// Frees that are refused: the block is as live as before, and the right call frees it.
// SPDX-License-Identifier: Apache-2.0
#include <gpumem/gpumem.h>
#include <gpumem/simulator.hpp>

#include <gtest/gtest.h>

#include <cstddef>

#include <cuda.h>
#include <dlfcn.h>

namespace {

namespace simulator = gpumem::simulator;

template <class Function> Function* driver_function(char const* name) {
  return reinterpret_cast<Function*>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), name));
}

// Makes the primary context of a device current.
void make_current(CUdevice device) {
  CUcontext context = nullptr;
  ASSERT_EQ(driver_function<CUresult(unsigned)>("cuInit")(0), CUDA_SUCCESS);
  ASSERT_EQ(driver_function<CUresult(CUcontext*, CUdevice)>("cuDevicePrimaryCtxRetain")(&context, device),
            CUDA_SUCCESS);
  ASSERT_EQ(driver_function<CUresult(CUcontext)>("cuCtxSetCurrent")(context), CUDA_SUCCESS);
}

class c_refused_frees : public testing::TestWithParam<char const*> {
protected:
  static void SetUpTestSuite() { simulator::load({.devices = 2}); }
  void SetUp() override {
    make_current(0);
    ASSERT_EQ(gpumem_make_pool(0, GetParam(), &pool), GPUMEM_GRANTED) << gpumem_last_error();
    auto* const create = driver_function<CUresult(CUstream*, unsigned)>("cuStreamCreate");
    ASSERT_EQ(create(&one, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(create(&other, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    ASSERT_EQ(gpumem_allocate(pool, one, bytes, 256, &block), GPUMEM_GRANTED);
  }
  void TearDown() override {
    make_current(0);
    EXPECT_EQ(gpumem_free_sized(pool, one, block, bytes), GPUMEM_GRANTED) << gpumem_last_error();
    gpumem_statistics now{};
    now.size = sizeof now;
    EXPECT_EQ(gpumem_read_statistics(pool, &now), GPUMEM_GRANTED);
    EXPECT_EQ(now.live, 0u);
    EXPECT_EQ(gpumem_release(pool), GPUMEM_GRANTED);
    auto* const destroy = driver_function<CUresult(CUstream)>("cuStreamDestroy_v2");
    EXPECT_EQ(destroy(one), CUDA_SUCCESS);
    EXPECT_EQ(destroy(other), CUDA_SUCCESS);
    EXPECT_EQ(simulator::run_until_idle(), 0u);
    for (auto const& finding : simulator::take_findings()) ADD_FAILURE() << finding.text;
  }

  static constexpr std::size_t bytes = std::size_t{1} << 20;
  gpumem_pool* pool = nullptr;
  CUstream one = nullptr, other = nullptr;
  void* block = nullptr;
};

TEST_P(c_refused_frees, default_stream_of_another_device) {
  make_current(1);
  for (auto* const stream : {GPUMEM_STREAM_PER_THREAD, GPUMEM_STREAM_LEGACY, static_cast<void*>(nullptr)}) {
    EXPECT_EQ(gpumem_free(pool, stream, block), GPUMEM_INVALID_ARGUMENT);
    EXPECT_EQ(gpumem_free_sized(pool, stream, block, bytes), GPUMEM_INVALID_ARGUMENT);
  }
}

TEST_P(c_refused_frees, default_stream_of_another_device_after_a_recorded_use) {
  ASSERT_EQ(gpumem_record_use(pool, block, other), GPUMEM_GRANTED);
  make_current(1);
  EXPECT_EQ(gpumem_free(pool, GPUMEM_STREAM_PER_THREAD, block), GPUMEM_INVALID_ARGUMENT);
}

TEST_P(c_refused_frees, wrong_sizes) {
  EXPECT_EQ(gpumem_free_sized(pool, one, block, bytes - 1), GPUMEM_INVALID_ARGUMENT);
  EXPECT_EQ(gpumem_free_sync(pool, block, bytes + 1), GPUMEM_INVALID_ARGUMENT);
}

INSTANTIATE_TEST_SUITE_P(stacks, c_refused_frees,
                         testing::Values("limit=1GiB", "pages=off", "hardened=on", "statistics(pool)",
                                         "limiting(pool,limit=1GiB)", "tracking(cuda)", "binning(pool,bins=1MiB:fixed)",
                                         "fallback(pool(limit=2MiB),managed)"));

} // namespace
