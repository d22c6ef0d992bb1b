// scalar: one value on a device.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <cstdint>
#include <type_traits>
#include <utility>

#include <cuda.h>

import gpumem;

namespace {

using gpumem::cuda_resource;
using gpumem::scalar;
using gpumem::stream;
namespace simulator = gpumem::simulator;

struct pair_of_values {
  double a;
  int b;
  friend bool operator==(pair_of_values const&, pair_of_values const&) = default;
};

static_assert(sizeof(scalar<int>) == sizeof(gpumem::buffer));
static_assert(std::is_nothrow_move_constructible_v<scalar<int>> && std::is_nothrow_move_assignable_v<scalar<int>> &&
              !std::is_copy_constructible_v<scalar<int>>);
static_assert(!std::is_convertible_v<stream&, scalar<int>>);

class scalar_test : public simulated {
protected:
  void TearDown() override {
    EXPECT_EQ(pool.statistics().live, 0u);
    simulated::TearDown();
  }
  gpumem::device first{0};
  stream a{first}, b{first};
  gpumem::pool_resource<cuda_resource> pool{cuda_resource{first}};
};

template <class T> class scalar_of : public scalar_test {};
using value_types = testing::Types<bool, std::int8_t, std::int16_t, std::int32_t, std::int64_t, float, double>;
TYPED_TEST_SUITE(scalar_of, value_types);

TYPED_TEST(scalar_of, holds_a_value) {
  scalar<TypeParam> value{this->a, this->pool, TypeParam(1)};
  EXPECT_EQ(this->pool.statistics().live, sizeof(TypeParam));
  EXPECT_EQ(value.value(), TypeParam(1));
  value.set_value_async(TypeParam(0));
  EXPECT_EQ(value.value(), TypeParam(0));
  value.set_value_async(TypeParam(1));
  value.set_value_to_zero_async();
  EXPECT_EQ(value.value(this->b), TypeParam(0));
}

TEST_F(scalar_test, is_written_by_work_on_its_stream) {
  scalar<pair_of_values> value{a, pool};
  auto* const p = value.data();
  simulator::work(a, {simulator::write(p, sizeof *p)}, {}, [p] { *p = {1.5, 2}; });
  EXPECT_EQ(value.value(), (pair_of_values{1.5, 2}));
  EXPECT_EQ(value.stream().get(), a.get());
  EXPECT_TRUE(value.resource() == gpumem::extend::make_any_memory(pool));
}

TEST_F(scalar_test, can_be_read_in_the_order_of_another_stream) {
  scalar<int> value{a, pool, 1};
  auto* const p = value.data();
  {
    auto const use = value.use_on(b);
    simulator::work(b, {simulator::write(p, sizeof *p)}, {}, [p] { *p = 2; });
  }
  EXPECT_EQ(value.value(b), 2);
  value.set_value_async(3);
  EXPECT_EQ(value.value(b), 3);
  value.set_stream(b);
  value.set_value_async(4);
  EXPECT_EQ(value.value(), 4);
}

TEST_F(scalar_test, copy_has_its_own_memory) {
  scalar<int> value{a, pool, 1};
  auto const same = scalar<int>::copy_of(b, value);
  auto const host = scalar<int>::copy_of(b, gpumem::host_resource{}, value);
  value.set_value_async(2);
  EXPECT_EQ(same.value(), 1);
  EXPECT_EQ(host.value(), 1);
  EXPECT_EQ(*host.data(), 1); // the host can dereference the pointer
}

TEST_F(scalar_test, moves_and_uses_the_current_resource_by_default) {
  scalar<int> value{a};
  EXPECT_TRUE(value.resource() == gpumem::extend::make_any_memory(gpumem::current_resource(first)));
  value.set_value_async(5);
  auto moved = std::move(value);
  value = scalar<int>{a, pool, 6};
  EXPECT_EQ(moved.value(), 5);
  EXPECT_EQ(value.value(), 6);
}

TEST_F(scalar_test, failed_first_write_leaves_no_memory) {
  simulator::fail_call("cuMemcpyAsync", 1, CUDA_ERROR_INVALID_VALUE);
  EXPECT_THROW((scalar<int>{a, pool, 1}), gpumem::cuda_error);
  scalar<int> value{a, pool, 1};
  a.begin_capture();
  EXPECT_THROW(value.set_value_async(2), gpumem::acquire_error);
  EXPECT_THROW(value.value(), gpumem::acquire_error);
  gpumem::driver_api::driver().graph_destroy(a.end_capture());
  EXPECT_EQ(value.value(), 1);
}

} // namespace
