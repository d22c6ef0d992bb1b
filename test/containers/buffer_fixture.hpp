// A fixture with buffers over a small counted pool. Include it after `import gpumem;`, <numeric>, <vector> and the
// simulated test: it includes nothing itself.
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace test {

using bytes = std::vector<unsigned char>;

inline bytes counting(std::size_t count, unsigned first = 1) {
  bytes made(count);
  std::iota(made.begin(), made.end(), static_cast<unsigned char>(first));
  return made;
}

inline bytes contents(gpumem::buffer const& block) {
  bytes made(block.size());
  block.read(made.data(), made.size());
  return made;
}

class buffer_fixture : public simulated {
protected:
  void TearDown() override {
    EXPECT_EQ(resource.counters().bytes.value, 0);
    simulated::TearDown();
  }
  gpumem::buffer filled(std::size_t count) {
    auto const source = counting(count);
    return gpumem::buffer::copy_of(a, resource, source.data(), count);
  }
  auto allocations() const { return resource.counters().allocations.total; }

  gpumem::device first{0}, second{1};
  gpumem::stream a{first}, b{first};
  gpumem::statistics_adaptor<gpumem::pool_resource<gpumem::cuda_resource>> resource{
      gpumem::pool_resource{gpumem::cuda_resource{first}, {.limit = 64 << 20}}};
};

} // namespace test
