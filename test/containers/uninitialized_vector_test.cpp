// uninitialized_vector: elements on a device that are set, read, grown, shrunk and copied.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <numeric>
#include <ranges>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

import gpumem;

namespace {

using gpumem::cuda_resource;
using gpumem::stream;
using gpumem::uninitialized_vector;
namespace simulator = gpumem::simulator;

struct point {
  float x, y, z;
  friend bool operator==(point const&, point const&) = default;
};
// Has no default constructor, and is not small.
struct record {
  explicit record(int n) : number{n} {}
  int number;
  std::array<char, 60> text{};
  friend bool operator==(record const&, record const&) = default;
};
struct alignas(1024) wide {
  int value;
};

template <class T>
concept has_vector = requires { typename uninitialized_vector<T>; };
static_assert(has_vector<int> && has_vector<point> && has_vector<record> && has_vector<int*>);
static_assert(!has_vector<std::string> && !has_vector<int&> && !has_vector<int const> && !has_vector<void>);
static_assert(sizeof(uninitialized_vector<int>) == sizeof(gpumem::buffer));
static_assert(std::is_nothrow_move_constructible_v<uninitialized_vector<int>> &&
              std::is_nothrow_move_assignable_v<uninitialized_vector<int>> &&
              !std::is_copy_constructible_v<uninitialized_vector<int>>);
static_assert(std::ranges::contiguous_range<uninitialized_vector<int>> &&
              std::ranges::contiguous_range<uninitialized_vector<int> const>);
static_assert(std::same_as<decltype(std::declval<uninitialized_vector<int> const&>().data()), int const*>);
static_assert(std::convertible_to<uninitialized_vector<int>&, gpumem::span<int>>);

class uninitialized_vector_test : public simulated {
protected:
  void TearDown() override {
    EXPECT_EQ(pool.statistics().live, 0u);
    simulated::TearDown();
  }
  template <class T> uninitialized_vector<T> holding(std::vector<T> const& values) {
    return uninitialized_vector<T>::copy_of(a, pool, {values.data(), values.size()});
  }
  template <class T> static std::vector<T> contents(uninitialized_vector<T> const& from) {
    std::vector<T> made(from.size());
    from.copy_to({made.data(), made.size()});
    from.synchronize();
    return made;
  }
  gpumem::device first{0};
  stream a{first}, b{first};
  gpumem::pool_resource<cuda_resource> pool{cuda_resource{first}};
};

TEST_F(uninitialized_vector_test, sizes_are_in_elements) {
  uninitialized_vector<double> const values{a, pool, 100};
  EXPECT_EQ(values.size(), 100u);
  EXPECT_EQ(values.capacity(), 100u);
  EXPECT_EQ(pool.statistics().live, 800u);
  EXPECT_FALSE(values.is_empty());
  EXPECT_EQ(values.end() - values.begin(), 100);
  EXPECT_EQ(values.begin(), values.data());
  EXPECT_EQ(values.span().data(), values.data());
  EXPECT_EQ(values.span().size(), 100u);
  EXPECT_EQ(values.stream().get(), a.get());
  EXPECT_TRUE(values.resource() == gpumem::extend::make_any_memory(pool));
}

TEST_F(uninitialized_vector_test, count_whose_bytes_overflow_is_refused) {
  constexpr auto most = std::numeric_limits<std::size_t>::max();
  EXPECT_THROW((uninitialized_vector<double>{a, pool, most / 8 + 1}), std::bad_array_new_length);
  EXPECT_THROW((uninitialized_vector<double>{a, most}), std::bad_array_new_length);
  EXPECT_THROW((uninitialized_vector<double>{a, pool, most / 8}), gpumem::out_of_memory);
  uninitialized_vector<point> values{a, pool, 1};
  EXPECT_THROW(values.resize(most / 12 + 1), std::bad_array_new_length);
  EXPECT_THROW(values.reserve(most), std::bad_array_new_length);
  EXPECT_EQ(values.size(), 1u);
}

TEST_F(uninitialized_vector_test, is_aligned_for_its_elements) {
  uninitialized_vector<wide> values{a, pool, 3};
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(values.data()) % 1024, 0u);
  values.resize(50);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(values.data()) % 1024, 0u);
  uninitialized_vector<char> const bytes{a, pool, 3};
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(bytes.data()) % 256, 0u);
}

template <class T> class uninitialized_vector_of : public uninitialized_vector_test {
protected:
  static T value(int n) {
    if constexpr (std::same_as<T, point>) {
      return {static_cast<float>(n), 2, 3};
    } else {
      return T(n);
    }
  }
};
using element_types =
    testing::Types<std::int8_t, std::int16_t, std::int32_t, std::uint64_t, float, double, bool, point, record>;
TYPED_TEST_SUITE(uninitialized_vector_of, element_types);

TYPED_TEST(uninitialized_vector_of, sets_and_reads_elements) {
  uninitialized_vector<TypeParam> values{this->a, this->pool, 5};
  for (std::size_t i = 0; i < 5; ++i) values.set_element_async(i, this->value(static_cast<int>(i)));
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(values.element(i), this->value(static_cast<int>(i)));
  EXPECT_EQ(values.front(), this->value(0));
  EXPECT_EQ(values.back(), this->value(4));
  values.set_element(2, this->value(1));
  EXPECT_EQ(values.element(2), this->value(1));
  EXPECT_EQ(values.element(1), this->value(1));
  EXPECT_EQ(values.element(3), this->value(3));
}

TEST_F(uninitialized_vector_test, sets_elements_to_zero) {
  auto values = holding<double>({1, 2, 3});
  values.set_element_to_zero_async(1);
  EXPECT_EQ(contents(values), (std::vector<double>{1, 0, 3}));
  values.set_element_async(1, -0.0); // also a zero, but with a sign
  EXPECT_TRUE(std::signbit(values.element(1)));
}

TEST_F(uninitialized_vector_test, element_can_be_read_in_the_order_of_another_stream) {
  auto values = holding<int>({1, 2, 3});
  auto* const p = values.data();
  simulator::work(a, {simulator::write(p, 4)}, {}, [p] { p[0] = 5; });
  EXPECT_EQ(values.element_on(b, 0), 5);
  {
    auto const use = values.use_on(b);
    simulator::work(b, {simulator::write(p, 4)}, {}, [p] { p[0] = 6; });
  }
  EXPECT_EQ(values.element(0), 6);
  values.set_stream(b);
  EXPECT_EQ(values.stream().get(), b.get());
  EXPECT_EQ(values.front(), 6);
}

TEST_F(uninitialized_vector_test, element_of_managed_or_pinned_memory_is_set) {
  gpumem::stream on{gpumem::device{0}};
  auto const check = [&](auto resource) {
    uninitialized_vector<int> values{on, resource, 4};
    for (int round = 0; round < 5; ++round) {
      simulator::work(on, {}, std::chrono::microseconds{50}); // the copy of the element comes after this
      values.set_element(1, round);                           // the value is gone before the copy runs
      EXPECT_EQ(values.element(1), round);
    }
  };
  check(gpumem::managed_resource{gpumem::device{0}});
  check(gpumem::pinned_resource{gpumem::device{0}});
  check(gpumem::pool_resource{gpumem::any_pool{gpumem::managed_resource{gpumem::device{0}}}});
}

TEST_F(uninitialized_vector_test, value_can_change_after_set_returned) {
  uninitialized_vector<int> values{a, pool, 2};
  simulator::work(a, {}, std::chrono::milliseconds{1});
  {
    int local = 7;
    values.set_element_async(0, local);
    local = 8;
  }
  values.set_element_async(1, 9);
  EXPECT_EQ(contents(values), (std::vector<int>{7, 9}));
}

TEST_F(uninitialized_vector_test, refuses_indices_beyond_its_size) {
  auto values = holding<int>({1, 2, 3});
  values.reserve(10);
  for (std::size_t index : {std::size_t{3}, std::size_t{9}, SIZE_MAX, SIZE_MAX / 4 + 1}) {
    EXPECT_THROW(values.element(index), std::out_of_range);
    EXPECT_THROW(values.element_on(b, index), std::out_of_range);
    EXPECT_THROW(values.set_element(index, 1), std::out_of_range);
    EXPECT_THROW(values.set_element_async(index, 1), std::out_of_range);
    EXPECT_THROW(values.set_element_to_zero_async(index), std::out_of_range);
  }
  std::vector<int> some(2);
  EXPECT_THROW(values.copy_from({some.data(), 2}, 2), std::out_of_range);
  EXPECT_THROW(values.copy_to({some.data(), 2}, SIZE_MAX), std::out_of_range);
  uninitialized_vector<int> const none{a, pool, 0};
  EXPECT_THROW(none.front(), std::out_of_range);
  EXPECT_THROW(none.back(), std::out_of_range);
  EXPECT_EQ(none.begin(), none.end());
  EXPECT_EQ(contents(values), (std::vector<int>{1, 2, 3}));
}

TEST_F(uninitialized_vector_test, grows_shrinks_and_keeps_its_elements) {
  auto values = holding<int>({1, 2, 3});
  values.resize(10);
  EXPECT_EQ(values.capacity(), 10u);
  values.resize(2);
  EXPECT_EQ(values.capacity(), 10u);
  values.shrink_to_fit();
  EXPECT_EQ(values.capacity(), 2u);
  EXPECT_EQ(contents(values), (std::vector<int>{1, 2}));
  values.reserve(100);
  auto* const p = values.data();
  values.resize(100);
  EXPECT_EQ(values.data(), p);
  values.clear();
  EXPECT_TRUE(values.is_empty());
  EXPECT_EQ(pool.statistics().live, 0u);
}

TEST_F(uninitialized_vector_test, parts_are_copied_in_and_out) {
  auto values = holding<int>({1, 2, 3, 4});
  std::vector<int> const two{8, 9};
  values.copy_from({two.data(), 2}, 1);
  EXPECT_EQ(contents(values), (std::vector<int>{1, 8, 9, 4}));
  std::vector<int> last(2);
  values.copy_to({last.data(), 2}, 2);
  values.synchronize();
  EXPECT_EQ(last, (std::vector<int>{9, 4}));
}

TEST_F(uninitialized_vector_test, copy_and_assignment_have_their_own_memory) {
  auto values = holding<int>({1, 2, 3});
  auto const same = uninitialized_vector<int>::copy_of(b, values);
  auto const host = uninitialized_vector<int>::copy_of(b, gpumem::host_resource{}, values);
  uninitialized_vector<int> assigned{b, pool, 1};
  assigned.assign(values);
  values.set_element_async(0, 7);
  EXPECT_EQ(contents(same), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(contents(assigned), (std::vector<int>{1, 2, 3}));
  host.synchronize();
  EXPECT_TRUE(std::ranges::equal(host, std::vector<int>{1, 2, 3})); // the host can dereference its pointers
}

TEST_F(uninitialized_vector_test, converts_to_a_buffer_and_back) {
  auto values = holding<int>({1, 2, 3, 4});
  auto* const p = values.data();
  auto bytes = values.release();
  EXPECT_EQ(bytes.data(), p);
  EXPECT_EQ(bytes.size(), 16u);
  EXPECT_TRUE(values.is_empty());
  EXPECT_THROW(values.resize(1), std::invalid_argument);
  uninitialized_vector<std::int64_t> const wider{std::move(bytes)};
  EXPECT_EQ(wider.size(), 2u);
  EXPECT_EQ(wider.front(), (std::int64_t{2} << 32) + 1);
}

TEST_F(uninitialized_vector_test, buffer_with_a_partial_element_is_refused) {
  EXPECT_THROW((uninitialized_vector<int>{gpumem::buffer{a, pool, 10}}), std::invalid_argument);
  EXPECT_THROW((uninitialized_vector<wide>{gpumem::buffer{a, pool, 1024}}), std::invalid_argument);
}

TEST_F(uninitialized_vector_test, vector_uses_the_current_resource) {
  uninitialized_vector<int> const values{a, 10};
  EXPECT_TRUE(values.resource() == gpumem::extend::make_any_memory(gpumem::current_resource(first)));
}

TEST_F(uninitialized_vector_test, moved_vector_keeps_its_elements) {
  auto values = holding<int>({1, 2, 3});
  auto moved = std::move(values);
  EXPECT_TRUE(values.is_empty()); // the moved-from state is tested
  values = std::move(moved);
  EXPECT_EQ(contents(values), (std::vector<int>{1, 2, 3}));
}

} // namespace
