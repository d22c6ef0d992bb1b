// Containers on a real device: kernels and the host see the same contents after growth, changes of stream and copies.
// SPDX-License-Identifier: Apache-2.0
#include "device_test.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

import gpumem;

using namespace gpumem;

namespace {

constexpr std::size_t size = std::size_t{8} << 20;

} // namespace

class containers_on_device : public device_test {
protected:
  void SetUp() override {
    device_test::SetUp();
    if (IsSkipped()) return; // without a device there are no streams
    pool_.emplace(cuda_resource{device{0}});
    for (int i = 0; i < 2; ++i) streams_.emplace_back(device{0});
  }
  pool_resource<cuda_resource>& pool() { return *pool_; }
  stream& a() { return streams_[0]; }
  stream& b() { return streams_[1]; }

private:
  std::optional<pool_resource<cuda_resource>> pool_;
  std::vector<stream> streams_;
};

TEST_F(containers_on_device, buffer_keeps_its_contents_when_it_grows_and_moves) {
  for (std::uint64_t round = 1; round <= 20; ++round) {
    buffer block{a(), pool(), size};
    stamp::write(a().get(), block.data(), size, round, 100);
    block.resize(2 * size);
    stamp::check(a().get(), block.data(), size, round, wrong_);
    block.resize(size);
    block.shrink_to_fit();
    auto const moved = std::move(block);
    stamp::check(a().get(), moved.data(), size, round, wrong_);
  }
}

TEST_F(containers_on_device, buffer_is_copied_after_the_work_of_both_streams) {
  for (std::uint64_t round = 1; round <= 20; ++round) {
    buffer source{a(), pool(), size}, target{b(), pool(), size};
    stamp::write(a().get(), source.data(), size, round, 100);
    stamp::write(b().get(), target.data(), size, ~round, 100);
    target.copy_from(source, size);
    stamp::write(a().get(), source.data(), size, ~round);
    stamp::check(b().get(), target.data(), size, round, wrong_);
  }
}

TEST_F(containers_on_device, buffer_is_used_by_another_stream_and_moved_to_it) {
  for (std::uint64_t round = 1; round <= 20; ++round) {
    buffer block{a(), pool(), size};
    stamp::write(a().get(), block.data(), size, round, 100);
    {
      auto const use = block.use_on(b());
      stamp::check(b().get(), block.data(), size, round, wrong_);
      stamp::write(b().get(), block.data(), size, round + 1, 100);
    }
    stamp::check(a().get(), block.data(), size, round + 1, wrong_);
    block.set_stream(b());
    stamp::check(b().get(), block.data(), size, round + 1, wrong_);
  }
}

TEST_F(containers_on_device, buffer_goes_to_host_memory_and_back) {
  std::vector<unsigned char> sent(size), found(size);
  std::iota(sent.begin(), sent.end(), static_cast<unsigned char>(1));
  auto const block = buffer::copy_of(a(), pool(), sent.data(), size);
  auto const host = buffer::copy_of(b(), host_resource{}, block);
  auto const other = buffer::copy_of(b(), host_resource{}, host);
  auto const back = buffer::copy_of(a(), pool(), other);
  back.read(found.data(), size);
  EXPECT_EQ(found, sent);
}

TEST_F(containers_on_device, buffer_is_filled_in_memory_of_both_kinds) {
  buffer block{a(), pool(), size}, host{a(), host_resource{}, size};
  for (auto* const each : {&block, &host}) {
    each->fill(std::byte{7});
    each->fill(std::byte{9}, 100, 50);
    std::vector<unsigned char> found(size), expected(size, 7);
    std::fill_n(expected.begin() + 50, 100, static_cast<unsigned char>(9));
    each->read(found.data(), size);
    EXPECT_EQ(found, expected);
  }
}

TEST_F(containers_on_device, elements_and_scalars_are_set_and_read) {
  uninitialized_vector<double> values{a(), pool(), 1000};
  for (std::size_t i = 0; i < values.size(); ++i) values.set_element_async(i, static_cast<double>(i) / 2);
  values.set_element_to_zero_async(999);
  EXPECT_EQ(values.element(501), 250.5);
  EXPECT_EQ(values.element_on(b(), 500), 250.0);
  EXPECT_EQ(values.back(), 0.0);
  scalar<std::uint64_t> one{a(), pool(), 42};
  stamp::check(a().get(), one.data(), sizeof(std::uint64_t), 42, wrong_);
  stamp::write(a().get(), one.data(), sizeof(std::uint64_t), 43, 100);
  EXPECT_EQ(one.value(b()), 43u);
}

TEST_F(containers_on_device, current_resource_and_percentage_belong_to_the_device) {
  auto const free = device{0}.memory().free;
  EXPECT_LE(percent_of_free_device_memory(100, device{0}), free);
  buffer const block{a(), 1000};
  EXPECT_TRUE(block.resource() == make_any_memory(current_resource(device{0})));
  stream_pool streams{device{0}, 4};
  for (int i = 0; i < 8; ++i) {
    auto const on = streams.next();
    buffer const each{on, size};
    stamp::write(on.get(), each.data(), size, static_cast<std::uint64_t>(i), 50);
    stamp::check(on.get(), each.data(), size, static_cast<std::uint64_t>(i), wrong_);
  }
}
