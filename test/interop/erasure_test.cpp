// Type-erased resources: what they are made from, what they keep, and what they refuse.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/services.hpp>

#include <cuda/buffer>

#include <cstddef>
#include <utility>

import gpumem;

namespace {

using gpumem::any_pool;
using gpumem::cuda_resource;
using gpumem::host_resource;
using gpumem::pool_ref;
using gpumem::statistics_adaptor;
namespace mr = gpumem::mr;

using counted = statistics_adaptor<cuda_resource>;
using host_log = gpumem::logging_adaptor<host_resource>;

static_assert(sizeof(any_pool) == 48 && sizeof(pool_ref) == 16);
static_assert(mr::resource_with<any_pool, mr::device_accessible, gpumem::extend::services>);
static_assert(mr::resource_with<counted, mr::device_accessible, gpumem::extend::services>);
static_assert(mr::synchronous_resource_with<host_log, mr::host_accessible, gpumem::extend::services>);
static_assert(!mr::has_property<host_log, mr::device_accessible>);

template <class Resource>
concept refers = requires(Resource& r) { r.ref(); };
static_assert(refers<cuda_resource> && refers<counted> && !refers<host_resource> && !refers<host_log>);

// CCCL makes buffers of memory from each resource, with the properties that the resource lists.
template <class... Resources>
inline constexpr bool make_buffers = (requires(gpumem::stream_ref on, Resources& from) {
  cuda::make_buffer<int>(on, from, 5, cuda::no_init);
  typename Resources::default_queries;
} && ...);
using over_pages = decltype(gpumem::pool_resource{gpumem::device{0}});
using over_cuda = gpumem::pool_resource<cuda_resource>;
using callbacks = decltype(gpumem::callback_resource{
    gpumem::device{0}, [](gpumem::stream_ref, std::size_t, std::size_t) -> void* { return nullptr; },
    [](gpumem::stream_ref, void*, std::size_t, std::size_t) {}});
static_assert(make_buffers<cuda_resource, gpumem::async_resource, gpumem::async_resource_view, gpumem::managed_resource,
                           gpumem::async_managed_resource, gpumem::async_managed_resource_view, gpumem::pinned_resource,
                           gpumem::async_pinned_resource, gpumem::async_pinned_resource_view, gpumem::system_resource,
                           callbacks>);
static_assert(make_buffers<over_pages, over_cuda, decltype(gpumem::arena_resource{cuda_resource{}}),
                           decltype(gpumem::fixed_size_resource{cuda_resource{}, {}}),
                           decltype(gpumem::binning_resource{cuda_resource{}}),
                           decltype(gpumem::monotonic_resource{cuda_resource{}}), gpumem::graph_resource<over_cuda>>);
static_assert(make_buffers<counted, gpumem::logging_adaptor<over_cuda>, gpumem::limiting_adaptor<over_cuda>,
                           gpumem::failing_adaptor<over_cuda>, gpumem::prefetch_adaptor<over_cuda>,
                           gpumem::aligned_adaptor<over_cuda>, gpumem::failure_callback_adaptor<over_cuda>,
                           gpumem::thread_safe_adaptor<over_cuda>, gpumem::tracking_adaptor<over_cuda>,
                           decltype(gpumem::fallback_adaptor{over_cuda{cuda_resource{}}, gpumem::managed_resource{}}),
                           decltype(gpumem::scope{over_cuda{cuda_resource{}}})>);
static_assert(make_buffers<any_pool, pool_ref, gpumem::simulator::checked<over_cuda>>);

/// A user's adaptor that forwards every property of its upstream, including the services.
class users_adaptor : public mr::forward_property<users_adaptor, counted> {
public:
  explicit users_adaptor(counted upstream) : upstream_{std::move(upstream)} {}
  void* allocate(gpumem::stream_ref s, std::size_t n, std::size_t a = 256) {
    ++calls;
    return upstream_.allocate(s, n, a);
  }
  void deallocate(gpumem::stream_ref s, void* p, std::size_t n, std::size_t a = 256) noexcept {
    ++calls;
    upstream_.deallocate(s, p, n, a);
  }
  void* allocate_sync(std::size_t n, std::size_t a = 256) { return upstream_.allocate_sync(n, a); }
  void deallocate_sync(void* p, std::size_t n, std::size_t a = 256) noexcept { upstream_.deallocate_sync(p, n, a); }
  counted const& upstream_resource() const noexcept { return upstream_; }
  friend bool operator==(users_adaptor const& a, users_adaptor const& b) { return a.upstream_ == b.upstream_; }
  static inline int calls = 0;

private:
  counted upstream_;
};

class erasure : public simulated {
protected:
  counted subject_{cuda_resource{}};
  gpumem::stream stream_{gpumem::device{0}};
};

TEST_F(erasure, narrowed_handle_keeps_its_services) {
  any_pool pool{subject_};
  mr::any_resource<mr::device_accessible> narrowed{pool};
  mr::resource_ref<mr::device_accessible> seen{narrowed};
  auto const expected = subject_.services();
  EXPECT_EQ(gpumem::extend::services_of(pool).state, expected.state);
  EXPECT_EQ(gpumem::extend::services_of(narrowed).state, expected.state);
  EXPECT_EQ(gpumem::extend::services_of(seen).state, expected.state);
  pool_ref ref = subject_.ref();
  EXPECT_EQ(gpumem::extend::services_of(ref).state, expected.state);
  EXPECT_EQ(gpumem::extend::services_of(ref).table, expected.table);
}

// Queries a property that the erased type names, one that it does not, and one that no resource has. The query is made
// here, in a unit outside the module.
TEST_F(erasure, properties_can_be_queried_outside_the_module) {
  auto const expected = subject_.services();
  auto const asks = [&](auto const& erased) {
    auto const found = try_get_property(erased, gpumem::extend::services{});
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->state, expected.state);
    EXPECT_EQ(found->table, expected.table);
    EXPECT_TRUE(try_get_property(erased, mr::device_accessible{}));
    EXPECT_FALSE(try_get_property(erased, mr::host_accessible{}));
  };
  any_pool const pool{subject_};
  mr::any_resource<mr::device_accessible> const narrowed{pool};
  mr::any_synchronous_resource<mr::device_accessible> const synchronous{pool};
  asks(pool);
  asks(pool_ref{subject_.ref()});
  asks(narrowed);
  asks(mr::resource_ref<mr::device_accessible>{subject_.ref()});
  asks(synchronous);
  asks(mr::synchronous_resource_ref<mr::device_accessible>{subject_.ref()});
  auto const memory = gpumem::extend::make_any_memory(subject_);
  EXPECT_EQ(try_get_property(memory, gpumem::extend::services{}).value().state, expected.state);
  EXPECT_FALSE(try_get_property(memory, mr::host_accessible{}));
}

TEST_F(erasure, erased_resources_compare_by_their_resource) {
  any_pool const a{subject_}, b{counted{cuda_resource{}}};
  auto const copy = a;
  EXPECT_TRUE(a == copy);
  EXPECT_FALSE(a == b);
  EXPECT_TRUE(any_pool{cuda_resource{}} == any_pool{cuda_resource{}});
  auto moved = std::move(b);
  void* const p = moved.allocate(stream_, 8, 256);
  moved.deallocate(stream_, p, 8, 256);
}

TEST_F(erasure, resource_type_can_be_recovered) {
  any_pool pool{subject_};
  auto* const back = mr::resource_cast<counted>(&pool);
  ASSERT_NE(back, nullptr);
  EXPECT_TRUE(*back == subject_);
  EXPECT_EQ(mr::resource_cast<cuda_resource>(&pool), nullptr);
}

TEST_F(erasure, forwarded_services_do_not_bypass_an_adaptor) {
  users_adaptor outer{subject_};
  mr::any_resource<mr::device_accessible, gpumem::extend::services> pool{outer};
  users_adaptor::calls = 0;
  { auto const block = gpumem::acquire(pool, stream_, 100).wait(); }
  EXPECT_EQ(users_adaptor::calls, 2);
  EXPECT_EQ(subject_.counters().allocations.total, 1);
}

TEST_F(erasure, synchronous_handle_allocates_for_the_host) {
  mr::any_synchronous_resource<mr::device_accessible> sync{subject_};
  void* const p = sync.allocate_sync(100, 256);
  mr::synchronous_resource_ref<mr::device_accessible> ref{sync};
  ref.deallocate_sync(p, 100, 256);
  EXPECT_EQ(subject_.counters().bytes, (gpumem::counter{0, 100, 100}));
}

TEST_F(erasure, allocation_keeps_an_erased_adaptor_alive) {
  gpumem::allocation kept;
  {
    any_pool pool{counted{cuda_resource{}}};
    kept = gpumem::acquire(pool, stream_, 4096).wait();
  }
  EXPECT_GT(device_bytes(), 0u);
  kept.reset();
}

TEST_F(erasure, cccl_buffer_uses_device_memory) {
  {
    cuda::buffer<int, mr::device_accessible> const values{stream_, subject_, 1000, cuda::no_init};
    EXPECT_EQ(values.size(), 1000u);
    EXPECT_EQ(subject_.counters().bytes.value, 4000);
  }
  EXPECT_EQ(subject_.counters().bytes.value, 0);
}

TEST_F(erasure, cccl_buffer_uses_host_memory) {
  statistics_adaptor counted_host{host_resource{}};
  {
    cuda::buffer<int, mr::host_accessible> values{stream_, counted_host, 1000, cuda::no_init};
    values.data()[999] = 5;
    EXPECT_EQ(counted_host.counters().bytes.value, 4000);
  }
  EXPECT_EQ(counted_host.counters().bytes.value, 0);
}

} // namespace
