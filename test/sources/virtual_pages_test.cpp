// Virtual pages: where pages are mapped and how large, which calls are refused, and which callbacks are called.
// SPDX-License-Identifier: Apache-2.0
#include "virtual_pages.hpp"

#include "../support/allocation_count.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include <cuda.h>

namespace {

namespace simulator = gpumem::simulator;
using namespace std::chrono_literals;
using gpumem::outcome;
using gpumem::extend::page_extent;
using gpumem::extend::page_info;

TEST_F(virtual_pages_test, construction_reserves_addresses_but_no_memory) {
  auto const before = device_bytes();
  auto const reserved = simulator::report().bytes_reserved;
  {
    gpumem::extend::virtual_pages pages;
    EXPECT_EQ(pages.where(), gpumem::device{0});
    EXPECT_EQ(pages.address_space(), 8 * gpumem::device{0}.memory().total);
    EXPECT_EQ(pages.granularity(), 2 * mib);
    EXPECT_EQ(pages.mapped_bytes(), 0u);
    EXPECT_EQ(pages.mapped_end(), 0u);
    EXPECT_EQ(pages.pages(), 0u);
    EXPECT_FALSE(pages.page_of(pages.base()));
    EXPECT_EQ(device_bytes(), before);
    EXPECT_EQ(simulator::report().bytes_reserved, reserved + pages.address_space());
    EXPECT_TRUE(gpumem::extend::virtual_pages::supported(gpumem::device{0}));
    gpumem::extend::virtual_pages small{gpumem::device{1}, {.address_space = 3 * mib}};
    EXPECT_EQ(small.address_space(), 4 * mib);
  }
  EXPECT_EQ(simulator::report().bytes_reserved, reserved);
  EXPECT_THROW((gpumem::extend::virtual_pages{gpumem::device{0}, {.address_space = SIZE_MAX}}), std::invalid_argument);
  EXPECT_THROW((gpumem::extend::virtual_pages{gpumem::device{0}, {.address_space = std::size_t{1} << 60}}),
               gpumem::cuda_error);
}

TEST_F(virtual_pages_test, fewer_addresses_are_reserved_if_the_driver_refuses) {
  auto const memory = gpumem::device{0}.memory().total;
  auto const refuse = [](int times) {
    for (int i = 1; i <= times; ++i) simulator::fail_call("cuMemAddressReserve", i, CUDA_ERROR_OUT_OF_MEMORY);
  };
  for (int times : {1, 2, 3}) {
    refuse(times);
    EXPECT_EQ(gpumem::extend::virtual_pages{}.address_space(), memory << (3 - times));
  }
  refuse(4);
  EXPECT_THROW(gpumem::extend::virtual_pages{}, gpumem::cuda_error);
  refuse(1);
  EXPECT_THROW((gpumem::extend::virtual_pages{gpumem::device{0}, {.address_space = 1}}), gpumem::cuda_error)
      << "not fewer than told";
  simulator::fail_call("cuMemAddressReserve", 1, CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_THROW(gpumem::extend::virtual_pages{}, gpumem::cuda_error);
}

TEST_F(virtual_pages_test, device_can_use_mapped_addresses) {
  gpumem::extend::virtual_pages pages{gpumem::device{1}};
  gpumem::stream stream{gpumem::device{1}};
  EXPECT_EQ(map(pages, 0, 5 * mib), (page_extent{0, 6 * mib})) << "whole granules";
  EXPECT_EQ(pages.mapped_bytes(), 6 * mib);
  EXPECT_EQ(pages.mapped_end(), 6 * mib);
  EXPECT_EQ(pages.pages(), 3u);
  EXPECT_EQ(gpumem::device{1}.memory().free, gpumem::device{1}.memory().total - 6 * mib);
  fill(stream, at(pages, 0), 7, 6 * mib);
  stream.synchronize();
  EXPECT_EQ(value_at(at(pages, 6 * mib - 4)), 7u);
}

TEST_F(virtual_pages_test, page_size_grows_with_the_mapped_bytes) {
  gpumem::extend::virtual_pages pages;
  EXPECT_EQ(pages.next_page_size(), 2 * mib);
  map(pages, 0, 256 * mib);
  EXPECT_EQ(pages.pages(), 128u);
  EXPECT_EQ(pages.next_page_size(), 2 * mib);
  map(pages, pages.mapped_end(), 1024 * mib, 1024 * mib);
  EXPECT_EQ(pages.pages(), 129u) << "one page, as requested";
  EXPECT_EQ(pages.next_page_size(), 10 * mib);
  map(pages, pages.mapped_end(), 25 * mib);
  EXPECT_EQ(pages.pages(), 132u) << "10, 10 and 6 MiB";
  EXPECT_EQ(page_at(pages, pages.mapped_end() - 1).extent.bytes, 6 * mib);
  map(pages, pages.mapped_end(), 8192 * mib, 8192 * mib);
  EXPECT_EQ(pages.next_page_size(), 32 * mib) << "never larger";
}

TEST_F(virtual_pages_test, invalid_ranges_are_refused) {
  gpumem::extend::virtual_pages pages{gpumem::device{0}, {.address_space = 64 * mib}};
  map(pages, 4 * mib, 4 * mib);
  EXPECT_EQ(why_not(pages.map(0, 0)), outcome::invalid_argument);
  EXPECT_EQ(why_not(pages.map(1, mib)), outcome::invalid_argument);
  EXPECT_EQ(why_not(pages.map(0, 2 * mib, mib)), outcome::invalid_argument);
  EXPECT_EQ(why_not(pages.map(2 * mib, 4 * mib)), outcome::invalid_argument) << "something is mapped there";
  EXPECT_EQ(why_not(pages.map(6 * mib, 4 * mib)), outcome::invalid_argument);
  EXPECT_EQ(why_not(pages.map(0, 20 * mib)), outcome::invalid_argument);
  EXPECT_EQ(why_not(pages.map(62 * mib, 4 * mib)), outcome::too_large);
  EXPECT_EQ(why_not(pages.map(66 * mib, 2 * mib)), outcome::too_large);
  auto const huge = pages.map(8 * mib, SIZE_MAX);
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error(), (gpumem::failure{outcome::too_large, 0, SIZE_MAX}));
  EXPECT_EQ(pages.pages(), 2u);
}

TEST_F(virtual_pages_test, only_whole_pages_are_unmapped) {
  gpumem::extend::virtual_pages pages;
  auto const before = device_bytes();
  map(pages, 0, 16 * mib, 8 * mib);
  EXPECT_FALSE(pages.unmap(0, 4 * mib));
  EXPECT_FALSE(pages.unmap(4 * mib, 4 * mib));
  EXPECT_FALSE(pages.unmap(0, 12 * mib));
  EXPECT_FALSE(pages.unmap(0, 24 * mib)) << "more than is free";
  EXPECT_FALSE(pages.unmap(0, 0));
  EXPECT_FALSE(pages.unmap(32 * mib, 2 * mib));
  EXPECT_EQ(device_bytes(), before + 16 * mib);
  EXPECT_TRUE(pages.unmap(0, 8 * mib));
  EXPECT_EQ(device_bytes(), before + 8 * mib);
  EXPECT_EQ(pages.mapped_end(), 16 * mib);
  EXPECT_TRUE(pages.unmap(8 * mib, 8 * mib));
  EXPECT_EQ(device_bytes(), before);
  EXPECT_EQ(pages.mapped_end(), 0u);
}

TEST_F(virtual_pages_test, holes_are_filled_before_the_end) {
  gpumem::extend::virtual_pages pages{gpumem::device{0}, {.address_space = 64 * mib}};
  EXPECT_EQ(pages.find_extent(2 * mib), 0u);
  map(pages, 0, 48 * mib, 2 * mib);
  EXPECT_EQ(pages.find_extent(mib), 48 * mib);
  EXPECT_TRUE(pages.unmap(4 * mib, 8 * mib));
  EXPECT_TRUE(pages.unmap(20 * mib, 4 * mib));
  EXPECT_TRUE(pages.unmap(30 * mib, 4 * mib));
  EXPECT_EQ(pages.find_extent(3 * mib), 20 * mib) << "the first of the smallest fitting holes";
  EXPECT_EQ(pages.find_extent(6 * mib), 4 * mib);
  EXPECT_EQ(pages.find_extent(10 * mib), 48 * mib);
  EXPECT_EQ(pages.find_extent(18 * mib), std::nullopt);
  EXPECT_EQ(pages.find_extent(0), std::nullopt);
  EXPECT_EQ(pages.find_extent(SIZE_MAX), std::nullopt);
  EXPECT_EQ(map(pages, pages.find_extent(4 * mib).value_or(0), 4 * mib), (page_extent{20 * mib, 4 * mib}));
  EXPECT_EQ(pages.find_extent(4 * mib), 30 * mib);
}

TEST_F(virtual_pages_test, page_of_an_address_is_found) {
  gpumem::extend::virtual_pages pages;
  map(pages, 4 * mib, 8 * mib, 8 * mib);
  EXPECT_EQ(pages.page_of(at(pages, 5 * mib)), (page_info{{4 * mib, 8 * mib}}));
  EXPECT_EQ(pages.page_of(at(pages, 12 * mib - 1)), (page_info{{4 * mib, 8 * mib}}));
  EXPECT_FALSE(pages.page_of(at(pages, 4 * mib) - 1));
  EXPECT_FALSE(pages.page_of(at(pages, 12 * mib)));
  EXPECT_FALSE(pages.page_of(nullptr));
  EXPECT_FALSE(pages.page_of(at(pages, pages.address_space())));
  std::vector<page_extent> seen;
  map(pages, 0, 2 * mib);
  pages.visit([&](page_info const& page) { seen.push_back(page.extent); });
  EXPECT_EQ(seen, (std::vector<page_extent>{{0, 2 * mib}, {4 * mib, 8 * mib}}));
}

TEST_F(virtual_pages_test, handles_have_the_requested_properties) {
  gpumem::extend::virtual_pages pages{gpumem::device{0}, {.exportable = true, .rdma = true}};
  map(pages, 0, 2 * mib);
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp told{};
  ASSERT_EQ(gpumem::driver_api::driver().mem_retain_allocation_handle(&handle, pages.base()), CUDA_SUCCESS);
  ASSERT_EQ(gpumem::driver_api::driver().mem_get_allocation_properties_from_handle(&told, handle), CUDA_SUCCESS);
  EXPECT_EQ(told.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  EXPECT_EQ(told.allocFlags.gpuDirectRDMACapable, 1);
  EXPECT_EQ(gpumem::driver_api::driver().mem_release(handle), CUDA_SUCCESS);
}

TEST_F(virtual_pages_test, peers_have_access_to_every_mapping) {
  gpumem::device const home{0}, peer{1};
  gpumem::extend::virtual_pages pages{home, {.peers = {home, peer}}};
  gpumem::extend::virtual_pages alone{home};
  map(pages, 0, 2 * mib);
  map(alone, 0, 2 * mib);
  ASSERT_TRUE(pages.alias(0, 8 * mib));
  gpumem::stream stream{peer};
  simulator::work(stream, {simulator::write(at(pages, 8 * mib), mib)}, 1us);
  EXPECT_TRUE(simulator::report().findings.empty());
  simulator::work(stream, {simulator::read(alone.base(), mib)}, 1us);
  auto const found = simulator::take_findings();
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].kind, simulator::finding_kind::access_without_right);
  stream.synchronize();
}

TEST_F(virtual_pages_test, callbacks_are_called_for_each_range) {
  using told = std::vector<std::pair<bool, page_extent>>;
  told heard;
  char* base = nullptr;
  {
    gpumem::virtual_pages_options options;
    auto const note = [&](bool mapped, void* address, std::size_t bytes) {
      heard.push_back({mapped, {static_cast<std::size_t>(static_cast<char*>(address) - base), bytes}});
      return true;
    };
    options.on_mapped = [note](void* address, std::size_t bytes) { return note(true, address, bytes); };
    options.on_unmapping = [note](void* address, std::size_t bytes) { note(false, address, bytes); };
    gpumem::extend::virtual_pages pages{gpumem::device{0}, options};
    base = at(pages, 0);
    map(pages, 0, 6 * mib);
    ASSERT_TRUE(pages.move(2 * mib, 8 * mib));
    EXPECT_TRUE(pages.unmap(4 * mib, 2 * mib));
  }
  EXPECT_EQ(heard, (told{{true, {0, 6 * mib}},
                         {true, {8 * mib, 2 * mib}},
                         {false, {2 * mib, 2 * mib}},
                         {false, {4 * mib, 2 * mib}},
                         {false, {0, 2 * mib}},
                         {false, {8 * mib, 2 * mib}}}));
}

TEST_F(virtual_pages_test, callback_can_refuse_a_mapping) {
  auto const before = device_bytes();
  gpumem::virtual_pages_options options;
  int answer = 0;
  options.on_mapped = [&](void*, std::size_t) { return answer == 2 ? throw std::runtime_error{"no"} : answer == 1; };
  gpumem::extend::virtual_pages pages{gpumem::device{0}, options};
  auto const refused = pages.map(0, 4 * mib);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error(), (gpumem::failure{outcome::driver_error, 0, 4 * mib}));
  answer = 2;
  EXPECT_EQ(why_not(pages.map(0, 4 * mib)), outcome::driver_error);
  EXPECT_EQ(device_bytes(), before);
  answer = 1;
  map(pages, 0, 4 * mib);
  answer = 0;
  EXPECT_EQ(why_not(pages.move(0, 8 * mib)), outcome::driver_error);
  EXPECT_EQ(pages.page_of(pages.base()), (page_info{{0, 2 * mib}})) << "at its place, and only once";
}

TEST_F(virtual_pages_test, few_driver_calls_are_made_and_unmap_makes_no_host_allocation) {
  gpumem::extend::virtual_pages pages;
  auto const count = [](char const* name) { return gpumem::driver_api::driver_calls(name); };
  auto const created = count("cuMemCreate"), allowed = count("cuMemSetAccess"), unmapped = count("cuMemUnmap");
  map(pages, 0, 16 * mib);
  EXPECT_EQ(count("cuMemCreate") - created, 8u);
  EXPECT_EQ(count("cuMemSetAccess") - allowed, 1u);
  auto const allocated = test::host_allocations();
  EXPECT_TRUE(pages.unmap(0, 16 * mib));
  EXPECT_EQ(test::host_allocations(), allocated);
  EXPECT_EQ(count("cuMemUnmap") - unmapped, 8u);
}

TEST_F(virtual_pages_test, calls_leave_a_capture_valid) {
  gpumem::extend::virtual_pages pages;
  gpumem::stream stream{gpumem::device{0}};
  stream.begin_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
  map(pages, 0, 4 * mib);
  EXPECT_TRUE(pages.move(0, 8 * mib));
  EXPECT_TRUE(pages.unmap(8 * mib, 2 * mib));
  auto* const graph = stream.end_capture();
  EXPECT_NE(graph, nullptr);
  EXPECT_EQ(gpumem::driver_api::driver().graph_destroy(graph), CUDA_SUCCESS);
}

TEST_F(virtual_pages_test, forked_child_makes_no_driver_call) {
  gpumem::extend::virtual_pages pages;
  map(pages, 0, 4 * mib);
  auto const child = ::fork();
  ASSERT_NE(child, -1);
  if (child == 0) {
    auto const calls = gpumem::driver_api::driver_calls();
    bool const right = pages.unmap(0, 2 * mib) && !pages.map(0, 2 * mib) && !pages.move(2 * mib, 8 * mib) &&
                       pages.mapped_bytes() == 2 * mib;
    pages.~virtual_pages();
    ::_exit(right && gpumem::driver_api::driver_calls() == calls ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

} // namespace
