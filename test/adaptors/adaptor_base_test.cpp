// The behaviour that all adaptors share: waiting, statistics, order of bookkeeping, lifetime, accessibility.
// SPDX-License-Identifier: Apache-2.0
#include "../support/simulated.hpp"

#include <gpumem/services.hpp>

#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>

import gpumem;

namespace {

/// An upstream with room for one block: further requests wait. It can trim, keeps statistics, finds blocks, and accepts
/// frees without size.
class narrow_state : public gpumem::extend::shared_state {
public:
  gpumem::expected<void*, gpumem::failure> try_allocate(gpumem::extend::stream_key const&, std::size_t bytes,
                                                        std::size_t) noexcept {
    std::scoped_lock const held{mutex_};
    if (taken_) return gpumem::unexpected<gpumem::failure>{gpumem::failure{gpumem::outcome::exhausted, 0, bytes}};
    taken_ = bytes;
    add_live();
    return room_;
  }
  void deallocate(gpumem::extend::stream_key const&, void*, std::size_t, std::size_t) noexcept {
    if (on_free) on_free();
    gpumem::extend::waiter* next = nullptr;
    {
      std::scoped_lock const held{mutex_};
      next = waiting_.first();
      if (next) waiting_.remove(*next);
      taken_ = next ? next->bytes() : 0;
    }
    if (next) {
      next->grant(room_);
    } else {
      drop_live();
    }
  }
  gpumem::device where() noexcept { return gpumem::device{0}; }
  bool admit(gpumem::extend::waiter& item) noexcept {
    std::scoped_lock const held{mutex_};
    return waiting_.park(item);
  }
  bool cancel_waiter(gpumem::extend::waiter& item) noexcept {
    std::scoped_lock const held{mutex_};
    return waiting_.remove(item);
  }
  std::size_t trim(std::size_t keep) { return 1000 - keep; }
  gpumem::statistics read_statistics() {
    gpumem::statistics now;
    now.live = taken_;
    return now;
  }
  std::size_t taken() const { return taken_; }
  void* room() { return room_; }
  std::function<void()> on_free;

private:
  ~narrow_state() override = default;
  std::mutex mutex_;
  gpumem::extend::waiter_list waiting_;
  std::size_t taken_ = 0;
  alignas(256) std::byte room_[256];
};

struct found_block {
  void* base;
  std::size_t bytes;
  bool live;
};
struct found_maybe {
  found_block block;
  found_block const* operator->() const { return &block; }
  explicit operator bool() const { return block.base != nullptr; }
};

class narrow_resource
    : public gpumem::extend::resource_base<narrow_resource, narrow_state, gpumem::mr::device_accessible> {
  using base = gpumem::extend::resource_base<narrow_resource, narrow_state, gpumem::mr::device_accessible>;

public:
  narrow_resource() : state_{new narrow_state} {}
  using base::deallocate;
  void deallocate(gpumem::stream_ref stream, void* p) noexcept { base::deallocate(stream, p, state_->taken()); }
  found_maybe find(void const* p) const {
    return {{p == state_->room() ? state_->room() : nullptr, state_->taken(), true}};
  }
  void record_use(void* p, gpumem::stream_ref) { used = p; }
  narrow_state& inner() const { return *state_; }
  void* used = nullptr;
  friend bool operator==(narrow_resource const& a, narrow_resource const& b) { return a.state_ == b.state_; }

private:
  friend base;
  narrow_state& state() const noexcept { return *state_; }
  gpumem::extend::state_ptr<narrow_state> state_;
};

class adaptor_base : public simulated {
protected:
  gpumem::stream stream_{gpumem::device{0}};
};

template <class Adaptor> void expect_counts_at_the_grant(Adaptor subject, gpumem::stream& stream) {
  auto first = subject.acquire(stream, 100).wait();
  EXPECT_EQ(subject.counters().bytes, (gpumem::counter{100, 100, 100}));
  gpumem::inline_executor here;
  bool resumed = false;
  {
    auto const late = subject.acquire(stream, 50, {.resume_on = &here}).wait_until(gpumem::detail::sync::now());
    EXPECT_EQ(late.error().reason, gpumem::outcome::deadline);
  }
  EXPECT_EQ(subject.counters().bytes.total, 100) << "a request that was not granted is counted";
  gpumem::detail::sync::thread waiting{[&] {
    auto second = subject.acquire(stream, 50).wait();
    resumed = true;
    EXPECT_EQ(subject.counters().bytes.value, 50);
  }};
  first.reset();
  waiting.join();
  EXPECT_TRUE(resumed);
  auto const after = subject.counters(); // two threads allocate, so the peaks are not exact
  EXPECT_EQ(after.bytes.value, 0);
  EXPECT_EQ(after.bytes.total, 150);
  EXPECT_EQ(after.allocations.value, 0);
  EXPECT_EQ(after.allocations.total, 2);
}

TEST_F(adaptor_base, request_that_waits_is_counted_at_its_grant) {
  expect_counts_at_the_grant(gpumem::statistics_adaptor{narrow_resource{}}, stream_);
}
TEST_F(adaptor_base, request_that_waits_is_counted_at_its_grant_through_two_adaptors) {
  expect_counts_at_the_grant(gpumem::statistics_adaptor{gpumem::logging_adaptor{narrow_resource{}, "/dev/null"}},
                             stream_);
}
TEST_F(adaptor_base, request_that_waits_is_counted_at_its_grant_over_an_erased_upstream) {
  expect_counts_at_the_grant(gpumem::statistics_adaptor{gpumem::any_pool{narrow_resource{}}}, stream_);
}

TEST_F(adaptor_base, request_over_an_erased_source_fails_at_once) {
  gpumem::statistics_adaptor subject{gpumem::any_pool{gpumem::cuda_resource{}}};
  EXPECT_THROW((void)subject.acquire(stream_, std::size_t{1} << 50).wait(), gpumem::out_of_memory);
  EXPECT_EQ(subject.counters(), gpumem::allocation_counts{});
}

TEST_F(adaptor_base, request_for_several_over_an_erased_source_gets_all_or_none) {
  gpumem::statistics_adaptor subject{gpumem::any_pool{gpumem::cuda_resource{}}};
  EXPECT_THROW((void)subject.acquire_all({{stream_, 1000}, {stream_, std::size_t{1} << 50}}).wait(),
               gpumem::out_of_memory);
  EXPECT_EQ(subject.counters().bytes.value, 0);
  {
    auto const both = subject.acquire_all({{stream_, 1000}, {stream_, 2000}}).wait();
    EXPECT_NE(both[1].data(), nullptr);
    EXPECT_EQ(subject.counters().bytes.value, 3000);
  }
  EXPECT_EQ(subject.counters().bytes.value, 0);
}

TEST_F(adaptor_base, free_is_counted_before_the_upstream_frees) {
  narrow_resource upstream;
  gpumem::statistics_adaptor subject{upstream};
  std::int64_t during = -1;
  upstream.inner().on_free = [&] { during = subject.counters().bytes.value; };
  subject.deallocate(stream_, subject.allocate(stream_, 64), 64);
  EXPECT_EQ(during, 0);
}

TEST_F(adaptor_base, adaptor_forwards_what_its_upstream_can_do) {
  gpumem::statistics_adaptor subject{gpumem::logging_adaptor{narrow_resource{}, "/dev/null"}};
  EXPECT_EQ(subject.trim(1), 999u);
  EXPECT_EQ(gpumem::trim(subject, 1), 999u);
  void* const p = subject.allocate(stream_, 77);
  EXPECT_EQ(subject.statistics().live, 77u);
  EXPECT_EQ(subject.find(p)->bytes, 77u);
  subject.record_use(p, stream_);
  EXPECT_EQ(subject.upstream().upstream().used, p);
  subject.deallocate(stream_, p); // counted without a size too
  EXPECT_EQ(subject.counters(), (gpumem::allocation_counts{{0, 77, 77}, {0, 1, 1}}));
}

template <class Resource>
concept finds = requires(Resource& r, void* p) { r.find(p); };
template <class Resource>
concept frees_without_size = requires(Resource& r, gpumem::stream_ref s, void* p) { r.deallocate(s, p); };
template <class Resource>
concept trims = requires(Resource& r) { r.trim(0); };

TEST_F(adaptor_base, adaptor_lacks_what_its_upstream_cannot_do) {
  using over_source = gpumem::statistics_adaptor<gpumem::cuda_resource>;
  using over_host = gpumem::statistics_adaptor<gpumem::host_resource>;
  static_assert(!finds<over_source> && !frees_without_size<over_source> && !trims<over_source>);
  static_assert(finds<gpumem::statistics_adaptor<narrow_resource>>);
  static_assert(!over_source::stream_ordered && gpumem::statistics_adaptor<narrow_resource>::stream_ordered);
  static_assert(gpumem::mr::resource_with<over_source, gpumem::mr::device_accessible>);
  static_assert(!gpumem::mr::has_property<over_source, gpumem::mr::host_accessible>);
  static_assert(gpumem::mr::resource_with<over_host, gpumem::mr::host_accessible>);
  static_assert(!gpumem::mr::has_property<over_host, gpumem::mr::device_accessible>);
  static_assert(sizeof(over_source) == 8);
}

TEST_F(adaptor_base, adaptor_lives_until_its_last_block_is_freed) {
  gpumem::allocation kept;
  {
    gpumem::statistics_adaptor subject{narrow_resource{}};
    kept = subject.acquire(stream_, 16).wait();
  }
  kept.reset(); // the state still exists here; otherwise a sanitizer reports it
  EXPECT_FALSE(kept);
}

TEST_F(adaptor_base, only_copies_of_an_adaptor_are_equal) {
  gpumem::statistics_adaptor a{gpumem::cuda_resource{}}, b{gpumem::cuda_resource{}};
  auto const same = a;
  EXPECT_TRUE(a == same);
  EXPECT_FALSE(a == b);
}

} // namespace
