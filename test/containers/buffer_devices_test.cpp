// Buffers of two devices: copies and fills touch memory only from the device that has it.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>

#include <chrono>
#include <cstddef>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <vector>

import gpumem;

#include "buffer_fixture.hpp"

namespace {

namespace simulator = gpumem::simulator;
using namespace std::chrono_literals;
using gpumem::buffer;
using gpumem::device;
using gpumem::stream;
using test::bytes;
using test::counting;

constexpr std::size_t size = 300'001;

class buffer_devices : public simulated {
protected:
  template <class Near, class Far> void check(Near near, Far far) {
    auto const sent = counting(size, 7);
    auto x = buffer::copy_of(a, near, sent.data(), size);
    auto y = buffer::copy_of(b, far, x);
    EXPECT_EQ(test::contents(y), sent);
    buffer back{a, near, size};
    back.copy_from(y, size);
    EXPECT_EQ(test::contents(back), sent);
    back.assign(y);
    bytes read(size);
    y.read_on(a, read.data(), size);
    EXPECT_EQ(read, sent);
    gpumem::uninitialized_vector<unsigned char> v{b, far, 10};
    v.assign(gpumem::uninitialized_vector<unsigned char>::copy_of(a, near, gpumem::span{sent.data(), size}));
    EXPECT_EQ(v.element(size - 1), sent.back());
    // A pool over pages must be open to the device of the next stream. A type-erased pool cannot be opened.
    if constexpr (requires { near.open_to(second); }) near.open_to(second);
    if constexpr (!std::is_same_v<Near, gpumem::any_pool>) check_on_stream_of_other_device(x);
    check_pointers(x, y, sent);
  }

private:
  // The buffer's memory is of device 0, its stream then of device 1.
  void check_on_stream_of_other_device(buffer& x) {
    auto* const last = static_cast<unsigned char*>(x.data()) + size - 1;
    simulator::work(a, {simulator::write(last, 1)}, 50us, [last] { *last = 1; });
    x.set_stream(b);
    x.fill(std::byte{3});
    x.resize(2 * size);
    x.resize(size);
    EXPECT_EQ(test::contents(x).back(), 3);
    auto const sent = counting(size, 9);
    x.write(sent.data(), size);
    bytes read(size);
    x.read(read.data(), size);
    EXPECT_EQ(read, sent);
    x.set_stream(a);
  }
  // The caller passes addresses, so only the driver knows to which device they belong.
  void check_pointers(buffer& x, buffer& y, bytes const& sent) {
    x.write(sent.data(), size);
    x.synchronize();
    y.fill(std::byte{0});
    y.copy_from(x.data(), size);
    EXPECT_EQ(test::contents(y), sent);
    x.fill(std::byte{0});
    x.synchronize();
    y.copy_to(x.data(), size);
    y.synchronize();
    EXPECT_EQ(test::contents(x), sent);
  }

protected:
  device first{0}, second{1};
  stream a{first}, b{second};
};

TEST_F(buffer_devices, pages_need_not_be_opened) { check(gpumem::pool_resource{first}, gpumem::pool_resource{second}); }
TEST_F(buffer_devices, pages_may_be_opened) {
  gpumem::pool_resource const near{first}, far{second};
  check(near, [&] {
    auto one = far;
    one.open_to(first);
    return one;
  }());
}
TEST_F(buffer_devices, current_resources) { check(gpumem::current_resource(first), gpumem::current_resource(second)); }
TEST_F(buffer_devices, chunks) {
  check(gpumem::pool_resource{first, {.pages = false}}, gpumem::pool_resource{second, {.pages = false}});
}
TEST_F(buffer_devices, sources) { check(gpumem::cuda_resource{first}, gpumem::cuda_resource{second}); }
TEST_F(buffer_devices, driver_pools) { check(gpumem::async_resource{first}, gpumem::async_resource{second}); }
TEST_F(buffer_devices, managed_and_pinned_memory) {
  check(gpumem::managed_resource{first}, gpumem::pinned_resource{second});
}
TEST_F(buffer_devices, pages_and_managed_memory) {
  check(gpumem::pool_resource{first}, gpumem::managed_resource{second});
}

// The stream's device may have no access to the memory.
TEST_F(buffer_devices, fill_runs_on_the_device_of_the_memory) {
  buffer x{a, gpumem::cuda_resource{first}, size};
  x.set_stream(b);
  auto const waits = gpumem::driver_api::driver_calls("cuStreamWaitEvent");
  x.fill(std::byte{3});
  EXPECT_EQ(gpumem::driver_api::driver_calls("cuStreamWaitEvent"), waits + 2) << "for b, and by b";
}

// The driver would let such a stream touch pages to which its device has no access.
TEST_F(buffer_devices, stream_of_an_unopened_device_is_refused_before_anything_changes) {
  auto x = buffer::copy_of(a, gpumem::pool_resource{first}, counting(size, 7).data(), size);
  try {
    x.set_stream(b);
    ADD_FAILURE() << "accepted";
  } catch (std::invalid_argument const& e) {
    EXPECT_NE(std::string_view{e.what()}.find("open_to()"), std::string_view::npos) << e.what();
  }
  EXPECT_EQ(x.stream().get(), a.get());
  EXPECT_EQ(test::contents(x), counting(size, 7));
}

// Both memories are of other devices than the stream: the copy runs on a stream of the target's device.
TEST_F(buffer_devices, copy_and_fill_are_captured) {
  auto near = gpumem::pool_resource{first};
  auto const far = gpumem::pool_resource{second};
  near.open_to(second);
  buffer from{a, near, size}, to{b, far, size};
  from.fill(std::byte{5});
  from.set_stream(b);
  CUgraph graph = nullptr;
  b.begin_capture();
  to.copy_from(from, size);
  from.fill(std::byte{6});
  graph = b.end_capture();
  EXPECT_NE(graph, nullptr);
  gpumem::driver_api::driver().graph_destroy(graph);
  to.fill(std::byte{1});
  EXPECT_EQ(test::contents(to)[size - 1], 1);
  EXPECT_EQ(test::contents(from)[size - 1], 5);
}

} // namespace
