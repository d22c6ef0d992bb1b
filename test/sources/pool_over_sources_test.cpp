// A pool over each source: the order of new memory, and of host-accessible memory.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/pool_options.hpp>

#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

import gpumem;

// A resource of another library that uses the current device, whichever it is, and notes it.
class on_current_device {
public:
  explicit on_current_device(std::vector<int>& used) : used_{&used} {}
  void* allocate_sync(std::size_t bytes, std::size_t = 256) {
    used_->push_back(gpumem::device::current().ordinal());
    return gpumem::cuda_resource{gpumem::device{used_->back()}}.allocate_sync(bytes);
  }
  void deallocate_sync(void* pointer, std::size_t bytes, std::size_t = 256) noexcept {
    used_->push_back(gpumem::device::current().ordinal());
    gpumem::cuda_resource{gpumem::device{1}}.deallocate_sync(pointer, bytes);
  }
  void* allocate(gpumem::stream_ref, std::size_t bytes, std::size_t = 256) { return allocate_sync(bytes); }
  void deallocate(gpumem::stream_ref, void* pointer, std::size_t bytes, std::size_t = 256) noexcept {
    deallocate_sync(pointer, bytes);
  }
  friend bool operator==(on_current_device const& a, on_current_device const& b) { return a.used_ == b.used_; }
  friend constexpr void get_property(on_current_device const&, gpumem::mr::device_accessible) noexcept {}

private:
  std::vector<int>* used_;
};

namespace {

namespace simulator = gpumem::simulator;
using namespace std::chrono_literals;

constexpr std::size_t chunk = std::size_t{2} << 20;

template <class Source> class pool_over : public simulated {
protected:
  using pool = gpumem::pool_resource<Source>;

  /// Allocates the whole pool as one block, uses it and frees it on the first stream, with the use still pending.
  void* freed_in_use(simulator::checked<pool>& from) {
    void* const p = from.allocate(a_, chunk);
    simulator::work(a_, {simulator::write(p, chunk)}, 50us, [this] { ran_ = true; });
    from.deallocate(a_, p, chunk);
    return p;
  }

  gpumem::stream a_{gpumem::device{0}}, b_{gpumem::device{0}};
  bool ran_ = false;
};

using sources = testing::Types<gpumem::cuda_resource, gpumem::managed_resource, gpumem::pinned_resource,
                               gpumem::host_resource, gpumem::async_resource, gpumem::async_resource_view,
                               gpumem::async_managed_resource, gpumem::async_pinned_resource>;
TYPED_TEST_SUITE(pool_over, sources);

// The chunk is valid in the order of the stream for which it was allocated.
TYPED_TEST(pool_over, new_memory_is_ordered_for_another_stream) {
  gpumem::pool_resource pool{TypeParam{}, {.limit = chunk}};
  simulator::checked checked{pool};
  void* const p = checked.allocate(this->a_, chunk / 2);
  void* const q = checked.allocate(this->b_, chunk / 2); // out of the chunk that was allocated for the other stream
  simulator::work(this->a_, {simulator::write(p, chunk / 2)});
  simulator::work(this->b_, {simulator::write(q, chunk / 2)});
  checked.deallocate(this->a_, p, chunk / 2);
  checked.deallocate(this->b_, q, chunk / 2);
}

// No work uses host-accessible memory any more when it is granted.
TYPED_TEST(pool_over, host_accessible_memory_is_reused_after_the_host_has_seen_completion) {
  gpumem::pool_resource pool{TypeParam{}, {.limit = chunk}};
  simulator::checked checked{pool};
  void* const p = this->freed_in_use(checked);
  void* const q = checked.allocate(this->b_, chunk);
  EXPECT_EQ(q, p);
  if constexpr (gpumem::mr::has_property<TypeParam, gpumem::mr::host_accessible>) EXPECT_TRUE(this->ran_);
  simulator::work(this->b_, {simulator::write(q, chunk)});
  checked.deallocate(this->b_, q, chunk);
}

TYPED_TEST(pool_over, request_of_the_host_is_granted_after_it_has_seen_completion) {
  gpumem::pool_resource pool{TypeParam{}, {.limit = chunk}};
  simulator::checked checked{pool};
  void* const p = this->freed_in_use(checked);
  void* const q = checked.allocate_sync(chunk);
  EXPECT_EQ(q, p);
  EXPECT_TRUE(this->ran_);
  simulator::work(this->b_, {simulator::write(q, chunk)});
  this->b_.synchronize();
  checked.deallocate_sync(q, chunk);
}

// The chunk is freed after all its uses, including those on other streams than the one for which it was allocated.
TYPED_TEST(pool_over, chunks_go_back_after_their_uses) {
  gpumem::pool_resource pool{TypeParam{}};
  simulator::checked checked{pool};
  this->freed_in_use(checked);
  void* const q = checked.allocate(this->b_, chunk / 4);
  simulator::work(this->b_, {simulator::write(q, chunk / 4)}, 50us);
  checked.deallocate(this->b_, q, chunk / 4);
  this->a_.synchronize();
  this->b_.synchronize();
  pool.trim();
  EXPECT_EQ(pool.statistics().reserved, 0u);
}

using pool_over_foreign = simulated;

// Also where another thread frees, as the library thread does, to which no device is current.
TEST_F(pool_over_foreign, the_device_of_the_pool_is_current_in_each_call) {
  for (bool const pass_through : {false, true}) {
    std::vector<int> used;
    auto const pool = [&] {
      gpumem::device_guard const there{gpumem::device{1}};
      return gpumem::pool_resource{on_current_device{used}, {.pass_through = pass_through}};
    }();
    EXPECT_EQ(pool.device(), gpumem::device{1});
    gpumem::stream stream{gpumem::device{1}};
    gpumem::device_guard const elsewhere{gpumem::device{0}};
    auto from = pool;
    void* const block = from.allocate(stream, chunk);
    std::thread{[&] {
      from.deallocate(stream, block, chunk);
      stream.synchronize();
      from.trim();
    }}.join();
    EXPECT_EQ(used, (std::vector<int>{1, 1})) << pass_through;
  }
}

} // namespace
