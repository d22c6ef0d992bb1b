// Typed allocators over any resource, which get the stream with each call or once.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

import gpumem;
#include "foreign_resource.hpp"

namespace {

using gpumem::cuda_resource;
using gpumem::host_resource;
using gpumem::polymorphic_allocator;
using gpumem::stream;
using gpumem::stream_allocator;

using traits = std::allocator_traits<stream_allocator<int>>;
static_assert(std::is_same_v<traits::rebind_alloc<double>, stream_allocator<double>>);
static_assert(std::is_same_v<traits::pointer, int*> && std::is_same_v<traits::size_type, std::size_t>);
static_assert(traits::propagate_on_container_move_assignment::value && traits::propagate_on_container_swap::value &&
              traits::propagate_on_container_copy_assignment::value && !traits::is_always_equal::value);
static_assert(std::is_nothrow_move_constructible_v<stream_allocator<int>>);
static_assert(std::is_convertible_v<stream_allocator<int>, stream_allocator<double>>);
static_assert(std::is_convertible_v<cuda_resource, polymorphic_allocator<int>>);
static_assert(!std::is_convertible_v<int, polymorphic_allocator<int>>);

class allocator_test : public simulated {
protected:
  void TearDown() override {
    EXPECT_EQ(resource.counters().bytes.value, 0);
    simulated::TearDown();
  }
  gpumem::device first{0};
  stream a{first}, b{first};
  gpumem::statistics_adaptor<gpumem::pool_resource<host_resource>> resource{gpumem::pool_resource{host_resource{}}};
};

TEST_F(allocator_test, allocates_elements_in_stream_order) {
  polymorphic_allocator<double> allocator{resource};
  auto* const p = allocator.allocate(10, a);
  EXPECT_EQ(resource.counters().bytes.value, 80);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 256, 0u);
  allocator.deallocate(p, 10, a);
  EXPECT_EQ(allocator.allocate(0, a), nullptr);
  allocator.deallocate(nullptr, 0, a);
}

TEST_F(allocator_test, aligns_for_its_elements) {
  struct alignas(4096) page {
    char bytes[4096];
  };
  polymorphic_allocator<page> allocator{resource};
  auto* const p = allocator.allocate(2, a);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % 4096, 0u);
  allocator.deallocate(p, 2, a);
}

TEST_F(allocator_test, size_that_overflows_is_refused) {
  polymorphic_allocator<double> allocator{resource};
  EXPECT_THROW((void)allocator.allocate(std::numeric_limits<std::size_t>::max() / 8 + 1, a), std::bad_array_new_length);
  EXPECT_THROW((void)allocator.allocate(std::numeric_limits<std::size_t>::max() / 8, a), gpumem::out_of_memory);
}

TEST_F(allocator_test, rebound_allocator_frees_its_memory) {
  polymorphic_allocator<double> const doubles{resource};
  polymorphic_allocator<float> floats{doubles};
  EXPECT_TRUE(floats == doubles);
  EXPECT_FALSE(floats != doubles);
  EXPECT_TRUE(doubles == polymorphic_allocator<double>{resource});
  EXPECT_FALSE(doubles == polymorphic_allocator<double>{host_resource{}});
  EXPECT_TRUE(doubles.resource() == gpumem::extend::make_any_memory(resource));
}

TEST_F(allocator_test, uses_the_current_resource_by_default) {
  polymorphic_allocator<int> allocator;
  EXPECT_TRUE(allocator == polymorphic_allocator<int>{gpumem::current_resource(first)});
  auto* const p = allocator.allocate(10, a);
  allocator.deallocate(p, 10, b);
}

TEST_F(allocator_test, keeps_a_foreign_resource_alive) {
  foreign_resource foreign;
  auto const told = foreign.tells();
  {
    polymorphic_allocator<int> allocator{std::move(foreign)};
    auto* const p = allocator.allocate(10, a);
    auto copy = std::make_unique<polymorphic_allocator<int>>(allocator);
    copy->deallocate(p, 10, a);
  }
  EXPECT_EQ(told->live, 0);
  EXPECT_EQ(told.use_count(), 1);
}

TEST_F(allocator_test, bound_to_a_stream_it_serves_standard_containers) {
  stream_allocator<int> const mine{a, resource};
  std::vector<int, stream_allocator<int>> values{mine};
  for (int i = 0; i < 1000; ++i) values.push_back(i);
  std::list<std::string, stream_allocator<std::string>> names({"one", "two"}, mine);
  std::map<int, int, std::less<>, stream_allocator<std::pair<int const, int>>> numbers{mine};
  for (int i = 0; i < 100; ++i) numbers[i] = i;
  EXPECT_GT(resource.counters().allocations.value, 100);
  EXPECT_EQ(values[999], 999);
  EXPECT_EQ(names.back(), "two");
  EXPECT_EQ(numbers.at(50), 50);
  EXPECT_EQ(values.get_allocator().stream().get(), a.get());
}

TEST_F(allocator_test, moves_with_its_container) {
  std::vector<int, stream_allocator<int>> one({1, 2, 3}, {a, resource}), two({4}, {b, host_resource{}});
  auto const* const place = one.data();
  two = std::move(one);
  EXPECT_EQ(two.data(), place); // the elements were not copied
  EXPECT_EQ(two.get_allocator().stream().get(), a.get());
  std::vector<int, stream_allocator<int>> three({5}, {b, resource});
  swap(two, three);
  EXPECT_EQ(three.data(), place);
  EXPECT_EQ(two.get_allocator().stream().get(), b.get());
  two = three;
  EXPECT_EQ(two.get_allocator().stream().get(), a.get());
  EXPECT_EQ(two, three);
}

TEST_F(allocator_test, compares_resource_and_stream) {
  stream_allocator<int> const mine{a, resource};
  EXPECT_TRUE(mine == (stream_allocator<double>{a, resource}));
  EXPECT_FALSE(mine == (stream_allocator<int>{b, resource}));
  EXPECT_FALSE(mine == (stream_allocator<int>{a, host_resource{}}));
}

} // namespace
