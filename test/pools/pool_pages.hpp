// A fixture for pools over virtual pages. Include it after `import gpumem;`.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace gpumem_test {

constexpr std::size_t MiB = std::size_t{1} << 20;

class pool_pages_test : public simulated_test {
protected:
  void SetUp() override { EXPECT_TRUE(wait_for_device_bytes(0)); }

  gpumem::device device = gpumem::device::current();
  gpumem::stream a{device}, b{device};
  using pool = gpumem::pool_resource<gpumem::cuda_resource>;

  static std::byte* at(void* p, std::size_t offset = 0) { return static_cast<std::byte*>(p) + offset; }
  static bool is_consistent(pool& r) {
    return static_cast<gpumem::detail::pool_state*>(r.services().state)->engine().is_consistent();
  }
  // Allocates four neighbouring blocks of 4 MiB.
  std::vector<void*> four(pool& r) {
    std::vector<void*> blocks;
    for (int i = 0; i < 4; ++i) blocks.push_back(r.allocate(a, 4 * MiB));
    for (int i = 1; i < 4; ++i) EXPECT_EQ(blocks[i], at(blocks[0], i * 4 * MiB));
    return blocks;
  }
};

} // namespace gpumem_test
