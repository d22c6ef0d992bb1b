// Virtual pages when a driver call fails: whichever call it is, the state stays unchanged and nothing leaks.
// SPDX-License-Identifier: Apache-2.0
#include "virtual_pages.hpp"

#include <array>
#include <functional>
#include <ostream>
#include <string>
#include <utility>

#include <cuda.h>

namespace {

namespace simulator = gpumem::simulator;
using gpumem::outcome;
using gpumem::extend::page_extent;

/// The memory that the device holds for a source, and the source's own figures.
struct state {
  std::size_t device_bytes;
  std::uint64_t mappings;
  std::size_t mapped_bytes;
  std::size_t pages;
  std::size_t end;
  friend bool operator==(state const&, state const&) = default;
  friend std::ostream& operator<<(std::ostream& out, state const& s) {
    return out << s.device_bytes << " bytes held, " << s.mappings << " mappings, " << s.mapped_bytes << " bytes in "
               << s.pages << " pages up to " << s.end;
  }
};

struct action {
  char const* name;
  std::function<bool(gpumem::extend::virtual_pages&)> run;
};

class virtual_pages_faults : public virtual_pages_test {
protected:
  static state now(gpumem::extend::virtual_pages const& pages) {
    return {device_bytes(), mappings(), pages.mapped_bytes(), pages.pages(), pages.mapped_end()};
  }

  /// Makes the driver release what it had kept.
  static void retry(gpumem::extend::virtual_pages& pages) { EXPECT_FALSE(pages.unmap(pages.address_space(), 0)); }

  static std::array<action, 5> actions() {
    return {{{"map", [](auto& pages) { return bool{pages.map(8 * mib, 6 * mib)}; }},
             {"map where the device was full",
              [](auto& pages) {
                simulator::fail_allocation(1);
                return !pages.map(8 * mib, 6 * mib, 2 * mib) && pages.map(8 * mib, 6 * mib, 2 * mib);
              }},
             {"alias", [](auto& pages) { return bool{pages.alias(0, 8 * mib)}; }},
             {"move", [](auto& pages) { return bool{pages.move(0, 8 * mib)}; }},
             {"unmap", [](auto& pages) { return pages.unmap(0, 4 * mib); }}}};
  }

  /// Returns the state after the action, and how many times the action calls a driver function.
  static std::pair<state, std::uint64_t> run_cleanly(action const& what, char const* call) {
    gpumem::extend::virtual_pages pages;
    map(pages, 0, 4 * mib);
    auto const before = gpumem::driver_api::driver_calls(call);
    EXPECT_TRUE(what.run(pages));
    return {now(pages), gpumem::driver_api::driver_calls(call) - before};
  }

  /// Makes the n-th call of a driver function fail inside the action.
  static void fail_once(action const& what, char const* call, std::uint64_t nth, state const& clean) {
    gpumem::extend::virtual_pages pages;
    map(pages, 0, 4 * mib);
    auto const before = now(pages);
    simulator::fail_call(call, nth, CUDA_ERROR_NOT_PERMITTED);
    if (!what.run(pages)) {
      EXPECT_EQ(now(pages), before);
      EXPECT_TRUE(what.run(pages)) << "the action can be repeated";
    }
    retry(pages);
    EXPECT_EQ(now(pages), clean);
  }
};

TEST_F(virtual_pages_faults, failed_driver_call_changes_nothing) {
  auto const held = device_bytes();
  auto const reserved = simulator::report().bytes_reserved;
  std::uint64_t faults = 0;
  for (auto const& what : actions()) {
    for (auto const* const call : {"cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuMemCreate", "cuMemMap",
                                   "cuMemSetAccess", "cuMemUnmap", "cuMemRelease"}) {
      auto const [clean, calls] = run_cleanly(what, call);
      for (std::uint64_t nth = 1; nth <= calls; ++nth, ++faults) {
        SCOPED_TRACE(std::string{what.name} + ", " + call + " " + std::to_string(nth));
        fail_once(what, call, nth, clean);
      }
    }
  }
  EXPECT_GE(faults, 20u);
  EXPECT_EQ(device_bytes(), held);
  EXPECT_EQ(mappings(), 0u);
  EXPECT_EQ(simulator::report().bytes_reserved, reserved);
}

TEST_F(virtual_pages_faults, failed_construction_leaves_nothing) {
  auto const reserved = simulator::report().bytes_reserved;
  for (auto const* const call :
       {"cuDeviceGetAttribute", "cuMemGetAllocationGranularity", "cuMemGetInfo", "cuMemAddressReserve"}) {
    simulator::fail_call(call, 1, CUDA_ERROR_NOT_PERMITTED);
    EXPECT_THROW(gpumem::extend::virtual_pages{}, gpumem::cuda_error) << call;
  }
  EXPECT_EQ(simulator::report().bytes_reserved, reserved);
  simulator::fail_call("cuDeviceGetAttribute", 1, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_FALSE(gpumem::extend::virtual_pages::supported(gpumem::device{0}));
}

TEST_F(virtual_pages_faults, map_without_enough_memory_changes_nothing) {
  gpumem::extend::virtual_pages pages;
  map(pages, 0, 2 * mib);
  auto const before = now(pages);
  for (std::uint64_t nth = 1; nth <= 4; ++nth) {
    simulator::fail_allocation(nth);
    auto const got = pages.map(8 * mib, 8 * mib);
    ASSERT_FALSE(got);
    EXPECT_EQ(got.error(), (gpumem::failure{outcome::exhausted, CUDA_ERROR_OUT_OF_MEMORY, 8 * mib}));
    EXPECT_EQ(now(pages), before);
  }
  auto const room = gpumem::device{0}.memory().free;
  auto const got = pages.map(8 * mib, room + 2 * mib, 1024 * mib);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().reason, outcome::exhausted);
  EXPECT_EQ(now(pages), before);
  map(pages, 8 * mib, room, 1024 * mib);
  EXPECT_EQ(gpumem::device{0}.memory().free, 0u);
}

TEST_F(virtual_pages_faults, failed_rollback_is_tried_again) {
  gpumem::extend::virtual_pages pages;
  simulator::fail_call("cuMemSetAccess", 1, CUDA_ERROR_NOT_PERMITTED);
  simulator::fail_call("cuMemUnmap", 2, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(why_not(pages.map(0, 6 * mib)), outcome::driver_error);
  EXPECT_EQ(pages.pages(), 0u);
  EXPECT_EQ(pages.mapped_bytes(), 2 * mib) << "the second page still exists and is counted";
  EXPECT_EQ(pages.mapped_end(), 4 * mib);
  EXPECT_EQ(pages.find_extent(4 * mib), 4 * mib);
  EXPECT_EQ(device_bytes(), 2 * mib);
  map(pages, 0, 6 * mib);
  EXPECT_EQ(pages.mapped_bytes(), 6 * mib);
  EXPECT_EQ(device_bytes(), 6 * mib);
}

TEST_F(virtual_pages_faults, failed_release_of_a_page_is_tried_again) {
  gpumem::extend::virtual_pages pages;
  map(pages, 0, 4 * mib);
  simulator::fail_call("cuMemRelease", 1, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_TRUE(pages.unmap(0, 4 * mib));
  EXPECT_EQ(pages.mapped_bytes(), 2 * mib);
  EXPECT_EQ(pages.mapped_end(), 0u) << "the addresses are free";
  EXPECT_EQ(mappings(), 0u);
  retry(pages);
  EXPECT_EQ(pages.mapped_bytes(), 0u);
  EXPECT_EQ(device_bytes(), 0u);
}

TEST_F(virtual_pages_faults, destructor_returns_everything) {
  auto const reserved = simulator::report().bytes_reserved;
  {
    gpumem::extend::virtual_pages pages;
    map(pages, 0, 8 * mib);
    ASSERT_TRUE(pages.alias(2 * mib, 32 * mib));
    ASSERT_TRUE(pages.pin(pages.base(), 1));
    simulator::fail_call("cuMemUnmap", 1, CUDA_ERROR_NOT_PERMITTED);
    simulator::fail_call("cuMemRelease", 2, CUDA_ERROR_NOT_PERMITTED);
  }
  EXPECT_EQ(device_bytes(), 0u);
  EXPECT_EQ(mappings(), 0u);
  EXPECT_EQ(simulator::report().bytes_reserved, reserved);
}

} // namespace
