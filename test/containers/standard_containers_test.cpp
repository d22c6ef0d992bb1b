// The containers of the standard library with a stream_allocator: each can be used again after a move, copy or swap.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <forward_list>
#include <functional>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

import gpumem;

namespace {

using gpumem::polymorphic_allocator;
using gpumem::stream_allocator;

template <class T> using allocator = stream_allocator<T>;
using pair = std::pair<int const, int>;

// Rules of the standard for each allocator: no copy, move, conversion or comparison throws.
template <class A, class B> constexpr bool keeps_the_rules() {
  return std::is_nothrow_copy_constructible_v<A> && std::is_nothrow_move_constructible_v<A> &&
         std::is_nothrow_copy_assignable_v<A> && std::is_nothrow_move_assignable_v<A> &&
         std::is_nothrow_swappable_v<A> && std::is_nothrow_constructible_v<A, B const&>;
}
static_assert(keeps_the_rules<stream_allocator<int>, stream_allocator<double>>());
static_assert(keeps_the_rules<polymorphic_allocator<int>, polymorphic_allocator<double>>());

template <class C> void put(C& into, int value) {
  using element = C::value_type;
  if constexpr (std::is_same_v<element, pair>) {
    into.insert({value, value});
  } else if constexpr (requires { into.push_back(element{}); }) {
    into.push_back(static_cast<element>(value));
  } else if constexpr (requires { into.push_front(element{}); }) {
    into.push_front(static_cast<element>(value));
  } else {
    into.insert(static_cast<element>(value));
  }
}

template <class C> std::size_t size_of(C const& c) {
  return static_cast<std::size_t>(std::distance(c.begin(), c.end()));
}

template <class C> class standard_container : public simulated {
protected:
  void TearDown() override {
    EXPECT_EQ(resource_.counters().bytes.value, 0);
    simulated::TearDown();
  }
  C filled(typename C::allocator_type const& with, int count) {
    C made(with);
    for (int i = 0; i < count; ++i) put(made, i);
    return made;
  }
  // Expects that the container has the allocator, and can be cleared and filled.
  void expect_usable(C& one, typename C::allocator_type const& with) {
    EXPECT_TRUE(one.get_allocator() == with);
    one.clear();
    for (int i = 0; i < 70; ++i) put(one, i);
    EXPECT_EQ(size_of(one), 70u);
    C const copy = one; // select_on_container_copy_construction gives the same allocator
    EXPECT_TRUE(copy.get_allocator() == with);
    EXPECT_TRUE(copy == one);
  }
  gpumem::stream a_{gpumem::device{0}}, b_{gpumem::device{0}};
  gpumem::statistics_adaptor<gpumem::pool_resource<gpumem::host_resource>> resource_{
      gpumem::pool_resource{gpumem::host_resource{}}};
  typename C::allocator_type first_{a_, resource_}, second_{b_, resource_};
};

using containers = testing::Types<
    std::vector<int, allocator<int>>, std::vector<bool, allocator<bool>>, std::deque<int, allocator<int>>,
    std::list<int, allocator<int>>, std::forward_list<int, allocator<int>>,
    std::basic_string<char, std::char_traits<char>, allocator<char>>, std::set<int, std::less<>, allocator<int>>,
    std::multiset<int, std::less<>, allocator<int>>, std::map<int, int, std::less<>, allocator<pair>>,
    std::multimap<int, int, std::less<>, allocator<pair>>,
    std::unordered_set<int, std::hash<int>, std::equal_to<>, allocator<int>>,
    std::unordered_multiset<int, std::hash<int>, std::equal_to<>, allocator<int>>,
    std::unordered_map<int, int, std::hash<int>, std::equal_to<>, allocator<pair>>,
    std::unordered_multimap<int, int, std::hash<int>, std::equal_to<>, allocator<pair>>>;
TYPED_TEST_SUITE(standard_container, containers);

TYPED_TEST(standard_container, is_usable_after_move_construction) {
  auto from = this->filled(this->first_, 60);
  auto to = std::move(from);
  EXPECT_EQ(size_of(to), 60u);
  this->expect_usable(from, this->first_); // NOLINT(bugprone-use-after-move): that is tested
  this->expect_usable(to, this->first_);
}

TYPED_TEST(standard_container, is_usable_after_move_assignment) {
  for (auto const& with : {this->first_, this->second_}) { // the allocators are equal, then different
    auto from = this->filled(this->first_, 60), to = this->filled(with, 5);
    to = std::move(from);
    EXPECT_EQ(size_of(to), 60u);
    this->expect_usable(from, this->first_); // NOLINT(bugprone-use-after-move): that is tested
    this->expect_usable(to, this->first_);
  }
}

TYPED_TEST(standard_container, is_usable_after_swap) {
  auto one = this->filled(this->first_, 60), two = this->filled(this->second_, 5);
  std::swap(one, two); // by the container's own swap
  EXPECT_EQ(size_of(one), 5u);
  EXPECT_EQ(size_of(two), 60u);
  this->expect_usable(one, this->second_);
  this->expect_usable(two, this->first_);
  auto three = std::move(one);
  one = std::move(two);
  two = std::move(three); // by moves, as algorithms do
  this->expect_usable(one, this->first_);
  this->expect_usable(two, this->second_);
}

TYPED_TEST(standard_container, is_usable_after_copy_assignment) {
  auto const from = this->filled(this->first_, 60);
  auto to = this->filled(this->second_, 5);
  to = from;
  EXPECT_TRUE(to == from);
  this->expect_usable(to, this->first_);
}

TYPED_TEST(standard_container, is_usable_after_construction_with_an_allocator) {
  for (auto const& with : {this->first_, this->second_}) {
    auto from = this->filled(this->first_, 60);
    TypeParam copy(from, with);
    EXPECT_TRUE(copy == from);
    TypeParam moved(std::move(from), with);
    EXPECT_EQ(size_of(moved), 60u);
    this->expect_usable(from, this->first_); // NOLINT(bugprone-use-after-move): that is tested
    this->expect_usable(copy, with);
    this->expect_usable(moved, with);
  }
}

TYPED_TEST(standard_container, is_usable_as_an_element_that_algorithms_move) {
  std::vector<TypeParam> several;
  for (int i = 0; i < 20; ++i) several.push_back(this->filled(this->first_, 20 - i));
  several.erase(several.begin() + 3);
  std::rotate(several.begin(), several.begin() + 7, several.end());
  for (auto& each : several) this->expect_usable(each, this->first_);
}

TYPED_TEST(standard_container, allocator_keeps_its_value_when_it_is_moved) {
  auto from = this->first_;
  auto const to = std::move(from);
  EXPECT_TRUE(from == this->first_ && to == this->first_); // NOLINT(bugprone-use-after-move): that is tested
  auto target = this->second_;
  target = std::move(from);
  EXPECT_TRUE(from == this->first_ && target == this->first_); // NOLINT(bugprone-use-after-move): that is tested
  typename std::allocator_traits<decltype(from)>::template rebind_alloc<double> const other{from};
  EXPECT_TRUE(other == from && decltype(from){other} == from);
  auto const selected = std::allocator_traits<decltype(from)>::select_on_container_copy_construction(from);
  EXPECT_TRUE(selected == from);
}

class moved_polymorphic_allocator : public simulated {};

TEST_F(moved_polymorphic_allocator, allocates_from_its_resource) {
  gpumem::stream on{gpumem::device{0}};
  polymorphic_allocator<int> from{gpumem::host_resource{}};
  polymorphic_allocator<int> to{std::move(from)};
  polymorphic_allocator<int> third{gpumem::cuda_resource{gpumem::device{0}}};
  third = std::move(to);
  for (auto* const each : {&from, &to, &third}) { // NOLINT(bugprone-use-after-move): that is tested
    EXPECT_TRUE(*each == polymorphic_allocator<double>{gpumem::host_resource{}});
    each->deallocate(each->allocate(3, on), 3, on);
  }
}

} // namespace
