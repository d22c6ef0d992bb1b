// A pool over a device maps pages, or allocates chunks if its options or the device require it.
// SPDX-License-Identifier: Apache-2.0
#include "upstream.hpp"

#include <gpumem/make_pool.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>

import gpumem;

namespace {

namespace simulator = gpumem::simulator;
constexpr std::size_t MiB = std::size_t{1} << 20;

class pool_pages_or_chunks : public gpumem_test::simulated_test {
protected:
  void SetUp() override { EXPECT_TRUE(wait_for_device_bytes(0)); }

  gpumem::device device = gpumem::device::current();
  gpumem::stream s{device};
  struct drawn {
    std::uint64_t pages;
    std::uint64_t chunks;
    friend bool operator==(drawn const&, drawn const&) = default;
  };
  static constexpr drawn a_page{1, 0}, a_chunk{0, 1};

  template <class Make> drawn drawn_by(Make make) {
    simulator::clear_driver_calls();
    auto pool = make();
    pool.deallocate(s, pool.allocate(s, 1000, 256), 1000, 256);
    auto calls = simulator::report().driver_calls;
    return {calls["cuMemCreate"], calls["cuMemAlloc"]};
  }
  drawn drawn_with(gpumem::pool_options const& options) {
    return drawn_by([&] { return gpumem::pool_resource{device, options}; });
  }
};

TEST_F(pool_pages_or_chunks, pool_maps_pages_unless_the_options_say_chunks) {
  EXPECT_EQ(drawn_with({}), a_page);
  EXPECT_EQ(drawn_with({.limit = 2 * MiB}), a_page);
  EXPECT_EQ(drawn_with({.pages = false}), a_chunk);
  EXPECT_EQ(drawn_with({.limit = 64 * MiB, .pages = false}), a_chunk);
}

TEST_F(pool_pages_or_chunks, pool_allocates_chunks_where_the_limit_is_less_than_a_page) {
  EXPECT_EQ(drawn_with({.limit = 2 * MiB - 1}), a_chunk);
  // With options that need pages the pool allocates no chunks, and therefore gets no memory.
  gpumem::pool_resource pool{device, {.limit = 1 * MiB}, {.exportable = true}};
  EXPECT_FALSE(pool.try_allocate(s, 1000, 256));
}

TEST_F(pool_pages_or_chunks, pool_over_an_upstream_ignores_the_option_pages) {
  EXPECT_EQ(drawn_by([&] { return gpumem::pool_resource{gpumem::cuda_resource{device}, {.pages = true}}; }), a_chunk);
  EXPECT_EQ(drawn_by([&] { return gpumem::pool_resource{gpumem::cuda_resource{device}, {.pages = false}}; }), a_chunk);
}

TEST_F(pool_pages_or_chunks, pool_refuses_page_options_without_pages) {
  EXPECT_THROW((gpumem::pool_resource{device, {.pages = false}, {.address_space = 64 * MiB}}), std::invalid_argument);
  EXPECT_THROW((gpumem::pool_resource{device, {.pages = false}, {.peers = {device}}}), std::invalid_argument);
  EXPECT_THROW((gpumem::pool_resource{device, {.pages = false}, {.exportable = true}}), std::invalid_argument);
  EXPECT_THROW((gpumem::pool_resource{device, {.pages = false}, {.rdma = true}}), std::invalid_argument);
  auto const told = [](void*, std::size_t) { return true; };
  EXPECT_THROW((gpumem::pool_resource{device, {.pages = false}, {.on_mapped = told}}), std::invalid_argument);
  EXPECT_THROW((gpumem::pool_resource{device, {.pages = false}, {.on_unmapping = told}}), std::invalid_argument);
}

TEST_F(pool_pages_or_chunks, pool_refuses_page_options_when_it_is_made) {
  gpumem::virtual_pages_options const too_large{.address_space = std::numeric_limits<std::size_t>::max()};
  EXPECT_THROW((gpumem::pool_resource{device, {.initial_size = 2 * MiB}, too_large}), std::invalid_argument);
  EXPECT_THROW((gpumem::pool_resource{device, {}, too_large}), std::invalid_argument);
}

TEST_F(pool_pages_or_chunks, pool_maps_whole_pages_within_the_limit) {
  gpumem::pool_resource pool{device, {.initial_size = 3 * MiB, .limit = 3 * MiB}};
  EXPECT_EQ(pool.statistics().reserved, 2 * MiB);
  EXPECT_EQ(pool.reserve(3 * MiB), 0u);
  EXPECT_EQ(device.memory().total - device.memory().free, 2 * MiB);
}

TEST_F(pool_pages_or_chunks, request_under_a_lowered_limit_is_granted_after_pages_are_unmapped) {
  gpumem::pool_resource pool{device, {.limit = 16 * MiB, .cross_stream = gpumem::reuse_policy::ordered}};
  gpumem::stream other{device};
  pool.deallocate(s, pool.allocate(s, 16 * MiB), 16 * MiB);
  s.synchronize();
  pool.set_limit(8 * MiB);
  auto const got = pool.try_allocate(other, 4 * MiB);
  ASSERT_TRUE(got) << "though all is free and complete";
  EXPECT_LE(pool.statistics().reserved, 8 * MiB);
  pool.deallocate(other, *got, 4 * MiB);
}

TEST_F(pool_pages_or_chunks, make_pool_chooses_pages_or_chunks_alike) {
  EXPECT_EQ(drawn_by([] { return gpumem::make_pool(0); }), a_page);
  EXPECT_EQ(drawn_by([] { return gpumem::make_pool(0, {.pages = false}); }), a_chunk);
}

} // namespace
