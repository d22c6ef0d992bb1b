// system_resource: memory of the host's allocator that devices access, and the advice for its headroom.
// SPDX-License-Identifier: Apache-2.0
#include "../pools/upstream.hpp"
#include "../support/simulated.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>

#include <cuda.h>
#include <unistd.h>

import gpumem;

namespace {

namespace simulator = gpumem::simulator;
using namespace std::chrono_literals;
using gpumem_test::driver_function;

constexpr std::size_t mib = std::size_t{1} << 20;
constexpr int nowhere = CU_DEVICE_INVALID;
constexpr int on_host = CU_DEVICE_CPU;

CUdeviceptr address(void const* p) { return reinterpret_cast<CUdeviceptr>(p); }

class system_resource : public simulated {
protected:
  /// Returns the device, or the host, that the bytes prefer.
  static int preferred(void const* p, std::size_t bytes) {
    int where = -3;
    auto* const ask = driver_function<decltype(cuMemRangeGetAttribute)>("cuMemRangeGetAttribute");
    EXPECT_EQ(ask(&where, sizeof where, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, address(p), bytes), CUDA_SUCCESS);
    return where;
  }
  static auto advice() { return gpumem::driver_api::driver_calls("cuMemAdvise"); }
  /// Returns a resource that finds room for these bytes on the device now.
  gpumem::system_resource with_room(std::size_t bytes) const {
    return gpumem::system_resource{first_, {.headroom = first_.memory().free - bytes}};
  }

  gpumem::device const first_{0}, second_{1};
  gpumem::stream s_{first_};
  std::size_t const page_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
};

TEST_F(system_resource, it_is_a_value_of_a_device_and_a_headroom) {
  using gpumem::mr::has_property;
  static_assert(has_property<gpumem::system_resource, gpumem::mr::host_accessible>);
  static_assert(has_property<gpumem::system_resource, gpumem::mr::device_accessible>);
  static_assert(!gpumem::system_resource::stream_ordered);
  EXPECT_TRUE(gpumem::system_resource::supported(first_));
  gpumem::system_resource const plain, same{first_}, other{second_};
  gpumem::system_resource const roomy{first_, {.headroom = mib}};
  EXPECT_EQ(plain, same);
  EXPECT_FALSE(plain == other);
  EXPECT_FALSE(plain == roomy);
  EXPECT_EQ(roomy, (gpumem::system_resource{first_, {.headroom = mib}}));
  EXPECT_EQ(other.device().ordinal(), 1);
  EXPECT_EQ(plain.headroom(), 0u);
  EXPECT_EQ(roomy.headroom(), mib);
  EXPECT_THROW(gpumem::system_resource{gpumem::device{2}}, std::invalid_argument);
}

TEST_F(system_resource, host_and_devices_use_the_same_memory) {
  gpumem::system_resource subject;
  auto* const p = static_cast<int*>(subject.allocate(s_, 2 * sizeof(int)));
  EXPECT_EQ(gpumem::driver_api::driver().memset_d32_async(address(p), 7, 1, s_.get()), CUDA_SUCCESS);
  s_.synchronize();
  EXPECT_EQ(p[0], 7);
  p[1] = 8;
  gpumem::cuda_resource device_memory{first_};
  auto* const copy = device_memory.allocate(s_, 2 * sizeof(int));
  EXPECT_EQ(gpumem::driver_api::driver().memcpy_async(address(copy), address(p), 2 * sizeof(int), s_.get()),
            CUDA_SUCCESS);
  EXPECT_EQ(gpumem::driver_api::driver().memset_d32_async(address(p), 0, 2, s_.get()), CUDA_SUCCESS);
  EXPECT_EQ(gpumem::driver_api::driver().memcpy_async(address(p), address(copy), 2 * sizeof(int), s_.get()),
            CUDA_SUCCESS);
  s_.synchronize();
  EXPECT_EQ(p[0], 7);
  EXPECT_EQ(p[1], 8);
  device_memory.deallocate(s_, copy, 2 * sizeof(int));
  subject.deallocate(s_, p, 2 * sizeof(int));
}

TEST_F(system_resource, memory_goes_back_to_the_host_only_after_the_work_of_the_stream) {
  gpumem::system_resource subject;
  int done = 0;
  for (int i = 0; i < 50; ++i) { // the host's allocator hands out the same address again
    auto* const p = static_cast<int*>(subject.allocate(s_, 256));
    simulator::work(s_, {simulator::write(p, 256)}, 20us, [&, p] {
      *p = i;
      ++done;
    });
    subject.deallocate(s_, p, 256);
    EXPECT_EQ(done, i + 1);
  }
}

TEST_F(system_resource, without_headroom_there_is_no_advice) {
  gpumem::system_resource subject;
  auto const before = advice();
  void* const p = subject.allocate(s_, mib);
  EXPECT_EQ(preferred(p, mib), nowhere);
  subject.deallocate(s_, p, mib);
  EXPECT_EQ(advice(), before);
}

TEST_F(system_resource, bytes_beyond_the_headroom_prefer_the_host) {
  auto subject = with_room(64 * mib);
  auto* const p = static_cast<std::byte*>(subject.allocate(s_, 100 * mib));
  EXPECT_EQ(preferred(p, 64 * mib), 0);
  EXPECT_EQ(preferred(p + 64 * mib, 36 * mib), on_host);
  auto* const small = static_cast<std::byte*>(subject.allocate_sync(mib));
  EXPECT_EQ(preferred(small, mib), 0) << "untouched blocks take no device memory";
  subject.deallocate_sync(small, mib);
  subject.deallocate(s_, p, 100 * mib);
  EXPECT_EQ(preferred(p, 64 * mib), nowhere) << "the next user of the addresses gets the advice";
  EXPECT_EQ(preferred(p + 64 * mib, 36 * mib), nowhere);
}

TEST_F(system_resource, allocated_device_memory_leaves_less_room) {
  auto subject = with_room(64 * mib);
  gpumem::cuda_resource others{first_};
  void* const taken = others.allocate_sync(48 * mib);
  auto* const p = static_cast<std::byte*>(subject.allocate(s_, 64 * mib));
  EXPECT_EQ(preferred(p, 16 * mib), 0);
  EXPECT_EQ(preferred(p + 16 * mib, 48 * mib), on_host);
  void* const rest = others.allocate_sync(32 * mib);
  auto* const q = static_cast<std::byte*>(subject.allocate(s_, mib));
  EXPECT_EQ(preferred(q, mib), on_host) << "less than the headroom is free";
  others.deallocate_sync(taken, 48 * mib);
  others.deallocate_sync(rest, 32 * mib);
  subject.deallocate(s_, p, 64 * mib);
  subject.deallocate(s_, q, mib);
}

TEST_F(system_resource, headroom_larger_than_the_device_keeps_all_blocks_on_the_host) {
  gpumem::system_resource subject{second_, {.headroom = SIZE_MAX}};
  void* const p = subject.allocate_sync(mib);
  EXPECT_EQ(preferred(p, mib), on_host);
  subject.deallocate_sync(p, mib);
}

TEST_F(system_resource, advice_covers_whole_pages_that_no_other_block_shares) {
  auto subject = with_room(page_ + page_ / 2);
  auto* const a = static_cast<std::byte*>(subject.allocate_sync(100));
  auto* const b = static_cast<std::byte*>(subject.allocate_sync(3 * page_ - 1));
  auto* const c = static_cast<std::byte*>(subject.allocate_sync(100, 4 * page_));
  EXPECT_EQ(preferred(a, page_), 0);
  EXPECT_EQ(preferred(b, page_), 0) << "the device's part is rounded down to whole pages";
  EXPECT_EQ(preferred(b + page_, 2 * page_), on_host);
  EXPECT_EQ(preferred(c, page_), 0);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(c) % (4 * page_), 0u);
  subject.deallocate_sync(a, 100);
  subject.deallocate_sync(c, 100);
  EXPECT_EQ(preferred(b, page_), 0) << "another block's free took the advice back";
  EXPECT_EQ(preferred(b + page_, 2 * page_), on_host);
  subject.deallocate_sync(b, 3 * page_ - 1);
}

TEST_F(system_resource, refused_advice_fails_the_allocation_and_leaves_nothing) {
  auto subject = with_room(64 * mib);
  auto const before = subject.statistics();
  struct refusal {
    char const* call;
    int nth;
  };
  for (auto const& [call, nth] : {refusal{"cuMemGetInfo", 1}, {"cuMemAdvise", 1}, {"cuMemAdvise", 2}}) {
    simulator::fail_call(call, static_cast<std::uint64_t>(nth), CUDA_ERROR_INVALID_DEVICE);
    auto const got = subject.try_allocate(s_, 100 * mib);
    ASSERT_FALSE(got) << call;
    EXPECT_EQ(got.error(), (gpumem::failure{gpumem::outcome::driver_error, CUDA_ERROR_INVALID_DEVICE, 100 * mib}));
  }
  auto const after = subject.statistics();
  EXPECT_EQ(after.live, before.live);
  EXPECT_EQ(after.reserved, before.reserved);
  EXPECT_EQ(after.failures, before.failures + 3);
  simulator::fail_call("cuMemAdvise", 3, CUDA_ERROR_INVALID_DEVICE); // of the free, which cannot fail
  void* const p = subject.allocate(s_, 100 * mib);
  subject.deallocate(s_, p, 100 * mib);
  EXPECT_EQ(subject.statistics().reserved, before.reserved);
}

TEST_F(system_resource, it_serves_a_pool) {
  simulator::checked pool{gpumem::pool_resource{with_room(64 * mib)}};
  gpumem::stream other{first_};
  for (int i = 0; i < 100; ++i) {
    auto& on = i % 2 ? s_ : other;
    auto* const p = static_cast<int*>(pool.allocate(on, 4096));
    *p = i; // a pool over memory of the host gives it out only when its uses are complete
    simulator::work(on, {simulator::write(p, 4096)}, 5us);
    pool.deallocate(on, p, 4096);
  }
}

} // namespace
