// A fixture for virtual pages over the simulated device: helper calls that fail the test at their own line.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../support/simulated.hpp"

#include <cstddef>
#include <cstdint>

#include <cuda.h>

import gpumem;

inline constexpr std::size_t mib = std::size_t{1} << 20;

class virtual_pages_test : public simulated {
protected:
  static char* at(gpumem::extend::virtual_pages const& pages, std::size_t offset) {
    return static_cast<char*>(pages.base()) + offset;
  }

  static gpumem::extend::page_extent map(gpumem::extend::virtual_pages& pages, std::size_t offset, std::size_t bytes,
                                         std::size_t page = 0) {
    auto const made = pages.map(offset, bytes, page);
    EXPECT_TRUE(made) << gpumem::to_string(made ? gpumem::outcome::granted : made.error().reason);
    return made ? *made : gpumem::extend::page_extent{};
  }

  /// Returns the page at an offset; an empty one if there is none.
  static gpumem::extend::page_info page_at(gpumem::extend::virtual_pages const& pages, std::size_t offset) {
    return pages.page_of(at(pages, offset)).value_or(gpumem::extend::page_info{});
  }

  static gpumem::outcome why_not(gpumem::expected<gpumem::extend::page_extent, gpumem::failure> const& result) {
    return result ? gpumem::outcome::granted : result.error().reason;
  }

  static void fill(gpumem::stream& on, void* where, std::uint32_t value, std::size_t bytes) {
    auto const address = reinterpret_cast<CUdeviceptr>(where);
    gpumem::driver_api::check(
        gpumem::driver_api::driver().memset_d32_async(address, value, bytes / sizeof value, on.get()), "fill");
  }

  static std::uint32_t value_at(void const* where) { return *static_cast<std::uint32_t const*>(where); }

  static std::uint64_t mappings() { return gpumem::simulator::report().mappings; }
};
