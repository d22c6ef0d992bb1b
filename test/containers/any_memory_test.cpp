// any_memory, the type-erased resource that containers hold.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/services.hpp>

#include <cstddef>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <utility>

import gpumem;
#include "foreign_resource.hpp"

namespace {

using gpumem::extend::any_memory;
using gpumem::cuda_resource;
using gpumem::extend::make_any_memory;

static_assert(sizeof(any_memory) == 48);
static_assert(std::is_nothrow_move_constructible_v<any_memory>);
static_assert(gpumem::mr::resource<any_memory>);
static_assert(std::is_same_v<decltype(make_any_memory(cuda_resource{})), any_memory>);

// A user's adaptor that forwards the services of its upstream by mistake: calls through them would bypass it.
class leaky_adaptor : public gpumem::mr::forward_property<leaky_adaptor, cuda_resource> {
public:
  explicit leaky_adaptor(int* calls) : calls_{calls} {}
  void* allocate(gpumem::stream_ref s, std::size_t n, std::size_t a) { return ++*calls_, below_.allocate(s, n, a); }
  void deallocate(gpumem::stream_ref s, void* p, std::size_t n, std::size_t a) noexcept {
    ++*calls_;
    below_.deallocate(s, p, n, a);
  }
  void* allocate_sync(std::size_t n, std::size_t a) { return below_.allocate_sync(n, a); }
  void deallocate_sync(void* p, std::size_t n, std::size_t a) noexcept { below_.deallocate_sync(p, n, a); }
  cuda_resource const& upstream_resource() const noexcept { return below_; }
  friend bool operator==(leaky_adaptor const& a, leaky_adaptor const& b) { return a.calls_ == b.calls_; }

private:
  cuda_resource below_;
  int* calls_;
};

class any_memory_test : public simulated {
protected:
  gpumem::device first{0}, second{1};
  gpumem::stream a{first};

  // Returns whether containers will call these services.
  static bool has_own_services(any_memory& memory, gpumem::extend::services_handle of) {
    auto const found = gpumem::extend::services_of(memory);
    return found.table == of.table && found.state == of.state;
  }
};

TEST_F(any_memory_test, container_shares_the_state_of_a_gpumem_resource) {
  gpumem::pool_resource const pool{cuda_resource{first}};
  auto memory = make_any_memory(pool);
  EXPECT_TRUE(has_own_services(memory, pool.services()));
  EXPECT_TRUE(memory == make_any_memory(pool));
  EXPECT_FALSE(memory == make_any_memory(gpumem::pool_resource{cuda_resource{first}}));
  EXPECT_FALSE(memory == make_any_memory(cuda_resource{first}));
}

TEST_F(any_memory_test, container_shares_the_handle_of_an_erased_resource) {
  gpumem::pool_resource pool{cuda_resource{first}};
  gpumem::any_pool const erased{pool};
  auto memory = make_any_memory(erased);
  EXPECT_TRUE(has_own_services(memory, pool.services()));
  EXPECT_TRUE(memory == make_any_memory(pool));
  EXPECT_TRUE(make_any_memory(memory) == memory);
}

TEST_F(any_memory_test, container_shares_the_resource_behind_a_reference) {
  gpumem::pool_resource pool{cuda_resource{first}};
  auto memory = make_any_memory(pool.ref());
  auto* const p = memory.allocate(a, 100, 256);
  EXPECT_EQ(pool.statistics().live, 100u);
  memory.deallocate(a, p, 100, 256);
}

TEST_F(any_memory_test, narrowed_resource_keeps_its_services) {
  gpumem::pool_resource const pool{cuda_resource{second}};
  gpumem::mr::any_resource<gpumem::mr::device_accessible> const narrowed{gpumem::any_pool{pool}};
  auto memory = make_any_memory(narrowed);
  auto const found = gpumem::extend::services_of(memory);
  EXPECT_EQ(found.table->device(found.state), 1);
  EXPECT_TRUE(memory == make_any_memory(narrowed));
  gpumem::stream const on_second{second};
  auto* const p = memory.allocate(on_second, 100, 256);
  EXPECT_EQ(gpumem::statistics_of(memory)->live, 100u);
  memory.deallocate(on_second, p, 100, 256);
}

TEST_F(any_memory_test, foreign_resource_lives_until_its_last_block_is_freed) {
  std::optional<gpumem::allocation> block;
  auto const told = [&] {
    foreign_resource resource;
    auto told = resource.tells();
    auto memory = make_any_memory(std::move(resource));
    block = gpumem::acquire(memory, a, 100).wait();
    return told;
  }();
  EXPECT_EQ(told->live, 1);
  EXPECT_EQ(told.use_count(), 2); // this one, and that of the resource behind the block
  block.reset();
  EXPECT_EQ(told->live, 0);
  EXPECT_EQ(told.use_count(), 1);
}

TEST_F(any_memory_test, foreign_resource_is_called_with_its_device_current) {
  foreign_resource const resource;
  auto const told = resource.tells();
  std::optional<any_memory> memory;
  {
    gpumem::device_guard const scope{second};
    memory = make_any_memory(resource);
  }
  gpumem::stream const on_second{second};
  auto* const p = memory->allocate(on_second, 100, 256);
  EXPECT_EQ(told->device_of_last_call, 1);
  told->device_of_last_call = -1;
  memory->deallocate(on_second, p, 100, 256);
  EXPECT_EQ(told->device_of_last_call, 1);
  EXPECT_EQ(gpumem::device::current(), first);
}

TEST_F(any_memory_test, foreign_resources_can_be_compared) {
  EXPECT_TRUE(make_any_memory(foreign_resource{1}) == make_any_memory(foreign_resource{1}));
  EXPECT_FALSE(make_any_memory(foreign_resource{1}) == make_any_memory(foreign_resource{2}));
}

TEST_F(any_memory_test, adaptor_that_forwards_services_is_not_bypassed) {
  int calls = 0;
  leaky_adaptor const leaky{&calls};
  static_assert(gpumem::mr::has_property<leaky_adaptor, gpumem::extend::services>);
  for (auto memory :
       {make_any_memory(leaky), make_any_memory(any_memory{leaky}), make_any_memory(gpumem::any_pool{leaky})}) {
    calls = 0;
    { auto const block = gpumem::acquire(memory, a, 100).wait(); }
    EXPECT_EQ(calls, 2);
  }
}

TEST_F(any_memory_test, empty_resource_is_refused) {
  any_memory full{cuda_resource{first}};
  auto const taken = std::move(full);
  EXPECT_THROW(make_any_memory(std::move(full)), std::invalid_argument); // NOLINT(bugprone-use-after-move)
  EXPECT_THROW((gpumem::buffer{a, std::move(full), 10}), std::invalid_argument);
  gpumem::mr::any_resource<gpumem::mr::device_accessible> other{foreign_resource{}};
  auto const also_taken = std::move(other);
  EXPECT_THROW(make_any_memory(std::move(other)), std::invalid_argument);
}

} // namespace
