// CCCL's own runtime types, unmodified, on the simulated device.
// SPDX-License-Identifier: Apache-2.0
#include "support/driver.hpp"

#include <cuda/algorithm>
#include <cuda/buffer>
#include <cuda/devices>

namespace {

using namespace std::chrono_literals;

class cccl : public simulated_device {
protected:
  cuda::device_ref device_{0};
};

TEST_F(cccl, streams_and_events_order_work) {
  cuda::stream a{device_};
  cuda::stream b{device_};
  EXPECT_NE(a.id(), b.id());
  EXPECT_EQ(a.device(), device_);
  std::vector<int> ran;
  simulator::work(a, {}, 1us, [&] { ran.push_back(1); });
  cuda::event done{a};
  EXPECT_FALSE(done.is_done());
  b.wait(done);
  simulator::work(b, {}, 1us, [&] { ran.push_back(2); });
  b.sync();
  EXPECT_EQ(ran, (std::vector{1, 2}));
  EXPECT_TRUE(done.is_done());
  EXPECT_TRUE(b.is_done());
}

TEST_F(cccl, bytes_are_filled_and_copied) {
  cuda::stream s{device_};
  cuda::std::span<char> const first(new_memory(64), 64);
  cuda::std::span<char> const second(new_memory(64), 64);
  cuda::fill_bytes(s, first, 7);
  cuda::copy_bytes(s, first, second);
  EXPECT_EQ(second[63], 0);
  s.sync();
  EXPECT_EQ(second[63], 7);
}

TEST_F(cccl, stream_waits_for_a_stream) {
  cuda::stream a{device_};
  cuda::stream b{device_};
  std::vector<int> ran;
  simulator::work(a, {}, 1us, [&] { ran.push_back(1); });
  b.wait(a);
  simulator::work(b, {}, 1us, [&] { ran.push_back(2); });
  b.sync();
  EXPECT_EQ(ran, (std::vector{1, 2}));
}

TEST_F(cccl, timed_events_measure_simulated_time) {
  cuda::stream s{device_};
  cuda::timed_event begin{s};
  simulator::work(s, {}, 5ms);
  cuda::timed_event end{s};
  end.sync();
  EXPECT_NEAR(static_cast<double>((end - begin).count()), 5e6, 1e5);
}

TEST_F(cccl, device_attributes_can_be_read) {
  EXPECT_EQ(cuda::devices.size(), 1u);
  EXPECT_EQ(device_.attribute(cuda::device_attributes::warp_size), 32);
  EXPECT_NE(std::string(device_.name().data(), device_.name().size()).find("simulated"), std::string::npos);
}

TEST_F(cccl, managed_and_pinned_resources_allocate) {
  cuda::mr::legacy_managed_memory_resource managed;
  void* p = managed.allocate_sync(4096, 256);
  static_cast<char*>(p)[0] = 1;
  managed.deallocate_sync(p, 4096, 256);
  cuda::mr::legacy_pinned_memory_resource pinned{device_};
  void* q = pinned.allocate_sync(4096, 256);
  static_cast<char*>(q)[0] = 1;
  pinned.deallocate_sync(q, 4096, 256);
}

TEST_F(cccl, errors_are_thrown_as_cuda_error) {
  cuda::stream s{device_};
  simulator::fail_call("cuStreamSynchronize", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THROW(s.sync(), cuda::cuda_error);
}

} // namespace
